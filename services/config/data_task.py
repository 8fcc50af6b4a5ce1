"""Task of a run on data: evaluations use prompts of the same data, unless a task is set."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from contracts.errors import InputError
from learner.algorithms.classes import algorithm_class
from services.config.data_settings import DataSettings
from services.data.annotated.task import laid_under, rewards_of, task_of, told

# Options of `data` that task=prompts has, too, and `folder`, which stands for `files`
KEPT = {"files", "path", "subset", "revision", "prompt", "response", "references_column", "system", "input"}
KEPT |= {"meta_columns", "max_rows", "truncation_side", "folder"}


def take_from_data(tree: DictConfig, named: Collection[str], default: str) -> None:
    """Take the task from the data unless one is set, and an annotation's rewards if none are set.

    An algorithm that imitates references gets the rows as a task, without data.

    Args:
        named: keys that the command line sets.
        default: name of a run's default task.
    """
    data = tree.get("data")
    if data is None:
        return
    section = {"folder": data} if isinstance(data, str) else OmegaConf.to_container(data, resolve=True)
    assert isinstance(section, Mapping)
    is_named = "task" in named or tree.task != {"name": default}
    if (rows := _rows_in(section)) is not None:
        if not is_named:
            task = told(None, rows)
            if rows.share is None and algorithm_class(tree.algorithm.name).traits.learns_from == "references":
                _refuse_lost(rows, tree.algorithm.name)
                task |= {"references_column": rows.response} if "response" in section else {}
                tree["data"] = None
            tree["task"] = task
        return
    folder = Path(str(section.get("folder") or ""))
    if is_named:
        options = {key.removeprefix("task.") for key in named if key.startswith("task.")}
        tree["task"] = laid_under(folder, OmegaConf.to_container(tree.task), options)  # type: ignore[arg-type]
    elif annotated := task_of(folder):
        tree["task"] = annotated
        if tree.get("reward") is None and not any(key.partition(".")[0] == "reward" for key in named):
            tree["reward"] = rewards_of(folder) or None


def _refuse_lost(rows: DataSettings, algorithm: str) -> None:
    """Reject options of `data` that a task lacks.

    Raises:
        InputError: an option is set that a task lacks.
    """
    default = DataSettings(files="any")
    lost = [
        f"data.{key}"
        for key in sorted(rows.model_fields_set - KEPT)
        if getattr(rows, key) != getattr(default, key)
    ]
    if lost:
        raise InputError(
            f"{lost[0]}: algorithm={algorithm} takes the rows as task=prompts, which has no such option. "
            f"iterations= and evaluate_every= set the length; algorithm=nll learns from the rows "
            "with all options of data"
        )


def _rows_in(section: Mapping[str, Any]) -> DataSettings | None:
    """Return the settings of rows; None for an annotation and for invalid settings, which fail later."""
    try:
        settings = DataSettings.model_validate(section)
    except ValidationError:
        return None
    return settings if settings.has_rows else None
