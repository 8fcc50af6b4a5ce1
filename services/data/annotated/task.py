"""Task and rewards of an annotated data set. A run on the data is evaluated on this task's prompts.

whetstone annotate ─▶ manifest.json (rows.told.task, rewards.told) ─▶ whetstone train data=FOLDER
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from services.data.annotated.parts import TOLD, read_manifest
from services.data.annotated.responses import ResponseData

OF_COLUMNS = "prompts"  # task that reads prompts from the rows of `whetstone annotate`
SOURCES = {"data_files", "path"}  # options of tasks that choose other rows


def told(task: Mapping[str, Any] | None, data: ResponseData) -> dict[str, Any]:
    """Return the task in the form of `task=`: the annotated one, or one that reads the same rows' prompts.

    >>> told(None, ResponseData(files="hh", prompt="question", max_rows=500))
    {'name': 'prompts', 'data_files': 'hh', 'prompt_column': 'question', 'limit': 500}
    """
    if task is not None:
        return dict(task)
    options = {
        "data_files": data.files,
        "path": data.path or None,
        "subset": data.subset,
        "revision": data.revision,
        "prompt_column": data.prompt if "prompt" in data.model_fields_set else None,
        "references_column": data.references_column,
        "system_column": data.system,
        "input_column": data.input,
        "meta_columns": list(data.meta_columns) or None,
        "limit": data.max_rows,
        "truncation_side": None if data.truncation_side == "left" else data.truncation_side,
    }
    return {"name": OF_COLUMNS} | {key: value for key, value in options.items() if value is not None}


def task_of(folder: Path) -> dict[str, Any] | None:
    """Return the task of an annotation; None without an annotation.

    Raises:
        InputError: the annotation does not name its task, because an old version wrote it.
    """
    manifest = read_manifest(folder)
    if not manifest:
        return None
    task = manifest.get("rows", {}).get(TOLD, {}).get("task")
    if task is None:
        raise InputError(
            f"data={folder} does not name its task: give task=NAME, whose validation and test "
            f"prompts the run is evaluated with; or repeat the command that annotated it, which "
            f"records the task and scores nothing again"
        )
    return dict(task)


def laid_under(folder: Path, task: Mapping[str, Any], options: Collection[str]) -> dict[str, Any]:
    """Complete a run's task with the annotation's options for that task, such as the place of its files.

    Args:
        options: names of options that the run sets. If one of them chooses other rows, the task stays
            unchanged.
    """
    try:
        annotated = task_of(folder)
    except InputError:
        annotated = None
    if annotated is None or annotated["name"] != task["name"] or SOURCES & {*task, *options}:
        return dict(task)
    return annotated | dict(task)


def rewards_of(folder: Path) -> list[dict[str, Any]]:
    """Return the annotation's rewards in the form of `reward=`; [] if it has none."""
    return list(read_manifest(folder).get("rewards", {}).get(TOLD, []))


def disagreement(folder: Path, task_name: str) -> str | None:
    """Return a warning if a run's task surely differs from the annotated one, else None.

    Rows from files may belong to any task.
    """
    try:
        task = task_of(folder)
    except InputError:
        return None
    if task is None or task["name"] in (task_name, OF_COLUMNS):
        return None
    return (
        f"data={folder} was annotated with task={task['name']}, but evaluations use the prompts of "
        f"task={task_name}; leave task out to use the data's prompts"
    )
