"""Read and check the rows of a user's file with the standard library; errors name the line."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from contracts.errors import InputError, did_you_mean
from contracts.whole_texts import expect_whole

Check = Callable[[Mapping[str, Any], str], object]  # refuses a row, given its place
FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
LARGEST_JSON = 64 * 2**20  # bytes; a larger JSON list takes over a second to read whole


def read_checked(
    path: Path, columns: Sequence[str], max_rows: int | None = None, check: Check | None = None
) -> list[dict[str, Any]]:
    """Refuse a file that is missing, empty, of an unknown kind, or wrong at some line.

    Args:
        columns: columns that every row must have.
        max_rows: number of rows to read; None: all.
        check: refuses a row; None: the first column must hold texts.

    Returns: the rows that were read; none for Parquet, or for JSON that is no list.

    Raises:
        InputError: names the file and, where one line is at fault, the line.
    """
    check_row = check or (lambda row, where: text_at(row, columns[0], where))
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise InputError(f"task.data_files: {path} {what}")
    if path.stat().st_size == 0:
        raise InputError(f"task.data_files: {path} is empty")
    if path.suffix not in FORMATS:
        raise InputError(f"task.data_files: {path}: expected a name that ends in {', '.join(FORMATS)}")
    try:
        # Spreadsheets begin a file with a byte order mark; a CSV reader needs line ends as they are.
        encoding, newline = ("utf-8-sig", "") if path.suffix == ".csv" else ("utf-8", None)
        with path.open(encoding=encoding, newline=newline) as file:
            match path.suffix:
                case ".jsonl":
                    return _of_lines(islice(file, max_rows), path, columns, check_row)
                case ".json" if path.stat().st_size <= LARGEST_JSON:
                    return _of_json(file.read(), path, columns, check_row)
                case ".csv":
                    return _of_csv(file, path, columns, max_rows, check_row)
    except UnicodeDecodeError as error:
        raise InputError(f"task.data_files: {path} is not UTF-8 text: {error}") from None
    return []


def read_tabbed(
    path: Path, names: tuple[str, ...], expected: str, *, may_have_header: bool = False
) -> list[dict[str, str]]:
    """Return the rows of a file whose columns `names` have tabs between them.

    Args:
        expected: the columns in words, for the error.

    Raises:
        InputError: the file is missing, empty or not UTF-8, or a line does not have these columns.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"task.data_files: {path} can't be read as UTF-8 text: {error}") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        found = tuple(line.rstrip("\r").split("\t"))
        if not line.strip() or (may_have_header and found == names):
            continue
        if len(found) != len(names):
            raise InputError(
                f"task.data_files: {path}, line {number}: expected {expected}, "
                f"got {len(found)} columns: {line[:60]}"
            )
        rows.append(dict(zip(names, found, strict=True)))
    if not rows:
        raise InputError(f"task.data_files: {path} holds no rows")
    return rows


def check_columns(there: Iterable[str], columns: Sequence[str], where: str) -> None:
    """Refuse a row or file that lacks one of `columns`; the message lists the columns there are."""
    names = list(there)
    for column in columns:
        if column not in names:
            raise InputError(f"{where}: there is no column '{column}'{did_you_mean(column, names)}")


def text_at(row: Mapping[str, Any], column: str, where: str) -> str:
    """Return the row's text in `column`.

    Raises:
        InputError: the value is no text.
    """
    value = row[column]
    if not isinstance(value, str):
        raise InputError(f"{where}: expected a text in column '{column}', got {value!r:.200}")
    return value


def texts_at(row: Mapping[str, Any], column: str, where: str) -> tuple[str, ...]:
    """Return the row's texts in `column`, which holds a list or a single text.

    Raises:
        InputError: the column holds something else.
    """
    value = row[column]
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"{where}: expected a text or a list of texts in column '{column}', got {value!r:.200}"
        )
    return tuple(texts)


def answer_at(row: Mapping[str, Any], column: str, where: str) -> str:
    """Return the row's answer in `column`, a text or a number, as a text.

    Raises:
        InputError: the value is neither.
    """
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{where}: expected a text or a number in column '{column}', got {value!r:.200}")
    return str(value)


def _of_lines(lines: Iterable[str], path: Path, columns: Sequence[str], check: Check) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where, shown = f"task.data_files: {path}, line {number}", line.strip()[:60]
        try:
            row = json.loads(line.strip())
        except json.JSONDecodeError as error:
            raise InputError(f"{where}, column {error.colno}: not JSON: {error.msg}. Got: {shown}") from None
        rows.append(_checked(row, columns, where, check))
    return _some(rows, path)


def _of_json(text: str, path: Path, columns: Sequence[str], check: Check) -> list[dict[str, Any]]:
    """Return the rows of a JSON list, or of JSON Lines that are named .json."""
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        if not text.lstrip().startswith("["):
            return _of_lines(text.split("\n"), path, columns, check)
        raise InputError(
            f"task.data_files: {path}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from None
    if not isinstance(whole, list):
        return []  # one row, or a list for each column: `datasets` reads it
    rows = [
        _checked(row, columns, f"task.data_files: {path}, row {number}", check)
        for number, row in enumerate(whole, start=1)
    ]
    return _some(rows, path)


def _of_csv(
    file: TextIO, path: Path, columns: Sequence[str], max_rows: int | None, check: Check
) -> list[dict[str, Any]]:
    reader = csv.DictReader(file)
    rows = []
    try:
        check_columns(reader.fieldnames or (), columns, f"task.data_files: {path}, line 1")
        for row in islice(reader, max_rows):
            check(row, f"task.data_files: {path}, line {reader.line_num}")
            rows.append(row)
    except csv.Error:  # such as a field too large for this reader: `datasets` decides
        return []
    return _some(rows, path)


def _checked(row: Any, columns: Sequence[str], where: str, check: Check) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected an object {{…}}, got {json.dumps(row)[:60]}")
    expect_whole(row, where)
    check_columns(row, columns, where)
    check(row, where)
    return row


def _some(rows: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    if not rows:
        raise InputError(f"task.data_files: {path} holds no rows")
    return rows
