"""Task of a run on data: evaluations ask the prompts of the same data, unless a task is named."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from contracts.errors import InputError
from learner.algorithms.classes import algorithm_class
from services.annotated.task import laid_under, rewards_of, task_of, told
from services.config.data_settings import DataSettings

# Options of `data` with a counterpart in task=prompts, and `folder`, which stands for `files`
KEPT = {"files", "path", "subset", "revision", "prompt", "response", "references_column", "system", "input"}
KEPT |= {"meta_columns", "max_rows", "truncation_side", "folder"}


def take_from_data(tree: DictConfig, named: Collection[str], default: str) -> None:
    """Take the task from the data where nobody names one; and an annotation's rewards, if none are given.

    An algorithm that imitates a task's references gets the rows as this task, and no data.

    Args:
        named: the keys that the command line sets.
        default: the name of the task that a run has where nobody chooses one.
    """
    data = tree.get("data")
    if data is None:
        return
    given = {"folder": data} if isinstance(data, str) else OmegaConf.to_container(data, resolve=True)
    assert isinstance(given, Mapping)
    is_named = "task" in named or tree.task != {"name": default}
    if (rows := _rows_in(given)) is not None:
        if not is_named:
            task = told(None, rows)
            if rows.share is None and algorithm_class(tree.algorithm.name).traits.learns_from == "references":
                _refuse_lost(rows, tree.algorithm.name)
                task |= {"references_column": rows.response} if "response" in given else {}
                tree["data"] = None
            tree["task"] = task
        return
    folder = Path(str(given.get("folder") or ""))
    if is_named:
        options = {key.removeprefix("task.") for key in named if key.startswith("task.")}
        tree["task"] = laid_under(folder, OmegaConf.to_container(tree.task), options)  # type: ignore[arg-type]
    elif found := task_of(folder):
        tree["task"] = found
        if tree.get("reward") is None and not any(key.partition(".")[0] == "reward" for key in named):
            tree["reward"] = rewards_of(folder) or None


def _refuse_lost(rows: DataSettings, algorithm: str) -> None:
    """Refuse options of `data` that a task has no counterpart of.

    Raises:
        InputError: one of them is set.
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
            f"iterations= and evaluate_every= say how long it learns; algorithm=nll learns from them "
            "with all options of data"
        )


def _rows_in(given: Mapping[str, Any]) -> DataSettings | None:
    """Return the settings of rows; None for an annotation, and for what is refused later."""
    try:
        found = DataSettings.model_validate(given)
    except ValidationError:
        return None
    return found if found.has_rows else None
