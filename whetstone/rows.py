"""Rows among a call's arguments: lists, iterables, pandas' DataFrames, and the data sets of `datasets`.

They become a JSON Lines file for each split, so that the rules of all files apply.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from whetstone.errors import InputError

PLACE = "rows of Python/"  # replaces the run's folder while that is unknown
HOLD_ROWS = ("task", "data", "task.data_files", "data.files", "task.path")
SPLITS = ("train", "validation", "test")
PROMPT = "prompt"  # the column of texts without columns

Row = dict[str, Any]
Rows = list[Row]


def rows_in(key: str, value: Any, kept: dict[str, Rows] | None) -> Any:
    """Return a configuration with a place for each split's rows; None if a value has no rows.

    Args:
        key: the value's key, such as "task".
        kept: gets the rows by their places; None: read nothing, and only return whether there are rows.

    Raises:
        InputError: a row holds a value that no file can hold.
    """
    if key not in HOLD_ROWS:
        return None
    splits = _splits(key, value)
    if splits is None:
        return None
    if kept is None:
        return True
    files = {}
    for split, rows in splits.items():
        read = [_row(key, split, number, row) for number, row in enumerate(rows)]
        if not read:
            raise InputError(f"{key}: {split} has no rows")
        files[split] = place = f"{PLACE}{split}-{digest_of(read)}.jsonl"
        kept[place] = read
    if key == "task":
        return {"name": "prompts", "data_files": files}
    return {"files": files} if key == "data" else files


def digest_of(rows: Rows) -> str:
    """Return a few characters that differ for different rows."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(line(row).encode())
    return digest.hexdigest()[:12]


def line(row: Row) -> str:
    """Return a row as a line of a file."""
    return json.dumps(row, ensure_ascii=False) + "\n"


def _splits(key: str, value: Any) -> dict[str, Iterable[Any]] | None:
    """Return the iterables of rows by split; None if the value is not rows."""
    if isinstance(value, Mapping):
        of_splits = {split: _iterable(key, table) for split, table in value.items()}
        splits = {split: rows for split, rows in of_splits.items() if rows is not None}
        if not splits.keys() & set(SPLITS) or len(splits) < len(value):
            return None  # options, such as files, or names of files
        if others := sorted(splits.keys() - set(SPLITS)):
            raise InputError(f"{key}: got rows of the split {others[0]!r}; expected {', '.join(SPLITS)}")
        return splits
    rows = _iterable(key, value)
    return None if rows is None else {"train": rows}


def _iterable(key: str, value: Any) -> Iterable[Any] | None:
    if isinstance(value, str | bytes | Mapping | type) or callable(getattr(value, "prompts", None)):
        return None
    if callable(to_dict := getattr(value, "to_dict", None)) and hasattr(value, "columns"):
        return _of_frame(to_dict)
    if isinstance(value, list | tuple):
        kinds = Mapping if _takes_files(key) else str | Mapping
        return value if value and all(isinstance(row, kinds) for row in value) else None
    return value if isinstance(value, Iterable) and not hasattr(value, "model_dump") else None


def _takes_files(key: str) -> bool:
    """Return whether texts under the key are names of files, not prompts."""
    return "." in key


def _of_frame(to_dict: Callable[[str], list[Row]]) -> Iterator[Row]:
    """Yield a DataFrame's rows; an empty cell is None."""
    for row in to_dict("records"):
        yield {str(name): None if _is_missing(cell) else cell for name, cell in row.items()}


def _is_missing(cell: Any) -> bool:
    return type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and cell != cell)


def _row(key: str, split: str, number: int, row: Any) -> Row:
    where = f"{key}: {split} row {number}"
    if isinstance(row, str) and not _takes_files(key):
        return {PROMPT: row}
    if not isinstance(row, Mapping):
        texts = "" if _takes_files(key) else "a text, or "
        raise InputError(f"{where}: got {row!r:.80}; expected {texts}a dict with a column for each key")
    return {str(name): _cell(f"{where}, column '{name}'", cell) for name, cell in row.items()}


def _cell(where: str, cell: Any) -> Any:
    """Return a cell in JSON's types."""
    if cell is None or isinstance(cell, str | bool):
        return cell
    if isinstance(cell, float) and cell != cell:
        return None
    if isinstance(cell, int | float):
        return cell
    if isinstance(cell, date):
        return cell.isoformat()
    if isinstance(cell, Mapping):
        return {str(name): _cell(where, element) for name, element in cell.items()}
    if isinstance(cell, list | tuple):
        return [_cell(where, element) for element in cell]
    if callable(to_list := getattr(cell, "tolist", None)):  # an array or number of numpy, torch or pandas
        return _cell(where, to_list())
    raise InputError(f"{where}: got {type(cell).__name__}; expected text, numbers, lists and dicts of these")


def write(rows: Mapping[str, Rows], folder: Path) -> None:
    """Write the rows of each place to its file, unless the file exists."""
    for place, of_place in rows.items():
        write_whole(folder / place.removeprefix(PLACE), "".join(map(line, of_place)))


def write_whole(file: Path, text: str) -> None:
    """Write a missing file; an interrupted write leaves it missing."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


def placed(value: Any, folder: Path) -> Any:
    """Return a configuration with a folder's files in place of their stand-in places.

    >>> placed({"files": {"train": "rows of Python/a.jsonl"}}, Path("/runs/a/rows"))
    {'files': {'train': '/runs/a/rows/a.jsonl'}}
    """
    if isinstance(value, Mapping):
        return {key: placed(option, folder) for key, option in value.items()}
    if isinstance(value, list):
        return [placed(element, folder) for element in value]
    if isinstance(value, str) and value.startswith(PLACE):
        return str(folder / value.removeprefix(PLACE))
    return value
