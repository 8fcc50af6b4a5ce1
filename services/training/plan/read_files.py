"""List the files that a run reads."""

from collections.abc import Iterable, Mapping
from typing import Any

from reward_servers.settings import Part
from services.config.compose import CONF, files_of
from services.config.data_settings import DataSettings
from services.data.tasks.base import Task
from services.models.files import ModelFiles
from services.runs.folder import RunFolder

WEIGHTS = ("model.safetensors.index.json", "model.safetensors", "pytorch_model*.bin")


def of_model(overrides: list[str], path: str, model: ModelFiles) -> dict[str, str]:
    """Return the files of the configuration, the model and its tokenizer.

    Args:
        path: the user's model.path.

    Example: `{"configuration": "conf/cluster/laptop.yaml, conf/train.yaml", "tokenizer": "gpt2", …}`
    """
    return {
        "configuration": ", ".join(configuration_files(overrides)),
        "model": str(model.folder / "config.json"),
        "weights": _weights(model, path),
        "tokenizer": str(model.tokenizer_folder),
    }


def of_data(
    tasks: Mapping[str, tuple[str, Task]], data: DataSettings | None, graders: Iterable[Part]
) -> dict[str, str]:
    """Return the places of prompts, annotated data and the graders' models.

    Args:
        tasks: name and task of each part of a mixture; the only task is under "".

    Example: `{"prompts": "task dates: made by the task itself", "data": "a/annotated.parquet"}`
    """
    places = {
        f"prompts of {part}" if part else "prompts": f"task {name}: {_data_of(task)}"
        for part, (name, task) in tasks.items()
    }
    if data is not None:
        rows = data.files or f"{data.path} on the hub, or in its cache"
        places["data"] = str(rows if data.has_rows else data.annotation / "annotated.parquet")
    for part in graders:
        if isinstance(named := part.options.get("model"), str):
            places[f"model of {part.label}"] = named
    return places


def of_run(folder: RunFolder) -> dict[str, str]:
    """Return the checkpoint from which a run in this folder continues; {} without a checkpoint."""
    steps = list(folder.checkpoints())
    return {"checkpoint": str(folder.checkpoint(max(steps)))} if steps else {}


def configuration_files(overrides: list[str]) -> list[str]:
    """Return the YAML files below these overrides; later files win."""
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
        return f"games in {folder}, missing ones are made"
    if hub := getattr(task, "path", None):
        return f"data set {hub} on the hub, or in its cache"
    return "made by the task itself"
