"""List what a run reads, and from which files."""

from pathlib import Path
from typing import Any

from services.config.compose import CONF, files_of
from services.config.settings import RunSettings
from services.models.files import ModelFiles
from services.runs.folder import RunFolder

WEIGHTS = ("model.safetensors.index.json", "model.safetensors", "pytorch_model*.bin")


def sources(
    settings: RunSettings, overrides: list[str], model: ModelFiles, folder: RunFolder
) -> dict[str, str]:
    """Return what the run reads, and where it lies.

    Example: `{"configuration": "conf/cluster/laptop.yaml, conf/train.yaml", "tokenizer": "gpt2", …}`
    """
    found = {
        "configuration": ", ".join(configuration_files(overrides)),
        "model": str(model.folder / "config.json"),
        "weights": _weights(model, settings.model.path),
        "tokenizer": str(model.tokenizer_folder),
    }
    for name, run in settings.by_task.items():
        what = f"prompts of {name}" if name else "prompts"
        found[what] = f"task {run.task_name}: {_data_of(run.task)}"
    if settings.data is not None:
        found["data"] = str(Path(settings.data.folder) / "annotated.parquet")
    for part in (*settings.reward, *settings.metrics):
        if isinstance(named := part.options.get("model"), str):
            found[f"model of {part.label}"] = named
    if folder.checkpoints():
        found["checkpoint"] = str(folder.checkpoint(max(folder.checkpoints())))
    return found


def configuration_files(overrides: list[str]) -> list[str]:
    """Return the YAML files that these overrides are laid over; the last one wins."""
    files = files_of(overrides)
    return [str(file.relative_to(CONF.parent)) if file.is_relative_to(CONF) else str(file) for file in files]


def _weights(model: ModelFiles, path: str) -> str:
    for pattern in WEIGHTS:
        if names := sorted(file.name for file in model.folder.glob(pattern)):
            return str(model.folder / names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    return f"{path} on the hub, when the run starts"


def _data_of(task: Any) -> str:
    if files := getattr(task, "data_files", None):
        return (
            ", ".join(f"{split}: {file}" for split, file in files.items())
            if isinstance(files, dict)
            else files
        )
    if games := getattr(task, "games", None):
        return str(games)
    if folder := getattr(task, "games_dir", None):
        return f"games in {folder}, made where they are missing"
    if hub := getattr(task, "path", None):
        return f"data set {hub} on the hub, or in its cache"
    return "made by the task itself"
