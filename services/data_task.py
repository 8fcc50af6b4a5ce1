"""What an annotated data set says of itself: the task whose prompts a run on it is evaluated with.

whetstone annotate ─▶ manifest.json (rows.told.task, rewards.told) ─▶ whetstone train data=FOLDER
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from services.annotation import TOLD, read_manifest
from services.response_data import ResponseData

OF_COLUMNS = "prompts"  # the task that reads the prompts of rows such as `whetstone annotate` takes
SOURCES = {"data_files", "path"}  # options of tasks: with one of them the rows are other ones


def told(task: Mapping[str, Any] | None, data: ResponseData) -> dict[str, Any]:
    """The task as `task=` takes it: the one that was annotated, or one that reads the same rows' prompts.

    >>> told(None, ResponseData(files="hh", prompt="question", max_rows=500))
    {'name': 'prompts', 'data_files': 'hh', 'prompt_column': 'question', 'limit': 500}
    """
    if task is not None:
        return dict(task)
    asked = {
        "data_files": data.files,
        "path": data.path or None,
        "subset": data.subset,
        "revision": data.revision,
        "prompt_column": None if data.prompt == "prompt" else data.prompt,
        "references_column": data.references_column,
        "meta_columns": list(data.meta_columns) or None,
        "limit": data.max_rows,
        "truncation_side": None if data.truncation_side == "left" else data.truncation_side,
    }
    return {"name": OF_COLUMNS} | {key: value for key, value in asked.items() if value is not None}


def task_of(folder: Path) -> dict[str, Any] | None:
    """The task that an annotation was made of; None: there is no annotation.

    Raises:
        InputError: it does not say, as one from before they did.
    """
    manifest = read_manifest(folder)
    if not manifest:
        return None
    found = manifest.get("rows", {}).get(TOLD, {}).get("task")
    if found is None:
        raise InputError(
            f"data={folder} does not say which task it is of: give task=NAME, whose validation and test "
            f"prompts the run is evaluated with; or give the command that annotated it once more, which "
            f"writes it down and scores nothing again"
        )
    return dict(found)


def laid_under(folder: Path, task: Mapping[str, Any], options: Collection[str]) -> dict[str, Any]:
    """A named task with what was annotated of the same task laid under it, such as where its files are.

    Args:
        options: that will be set besides; with a source of rows among them nothing is laid under.
    """
    try:
        found = task_of(folder)
    except InputError:
        found = None
    if found is None or found["name"] != task["name"] or SOURCES & {*task, *options}:
        return dict(task)
    return found | dict(task)


def rewards_of(folder: Path) -> list[dict[str, Any]]:
    """The rewards as the annotation was told, such as `reward=` takes them; [] where it has none."""
    return list(read_manifest(folder).get("rewards", {}).get(TOLD, []))


def disagreement(folder: Path, task_name: str) -> str | None:
    """A sentence for people, where a run asks another task's prompts than those that were annotated.

    Rows of files belong to any task, as far as one can know.
    """
    try:
        found = task_of(folder)
    except InputError:
        return None
    if found is None or found["name"] in (task_name, OF_COLUMNS):
        return None
    return (
        f"data={folder} was annotated with task={found['name']}, and evaluations ask the prompts of "
        f"task={task_name}; leave task out to ask the data's own"
    )
