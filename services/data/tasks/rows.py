"""Read and check the rows of a user's file with the standard library. Errors name the line."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.errors import InputError, did_you_mean
from services.data.tasks.file_bytes import PACKED, kind_of
from services.data.tasks.file_rows import DELIMITERS, file_rows

Check = Callable[[Mapping[str, Any], str], object]  # raises an error for a wrong row, given its place
TEXT_KINDS = (".jsonl", ".json", *DELIMITERS)
OTHER_KINDS = (".parquet", ".arrow")  # files with typed columns, which `datasets` reads
SAVED = "state.json"  # file in a folder that `save_to_disk` of `datasets` wrote
READ_WHOLE = 64 * 2**20  # bytes; a larger file takes over a second


def read_checked(
    path: Path, columns: Sequence[str], max_rows: int | None = None, check: Check | None = None
) -> list[dict[str, Any]]:
    """Reject a file that is missing, empty, of an unknown kind, or wrong at some line.

    Args:
        columns: columns that every row must have.
        max_rows: number of rows to read; None: all.
        check: rejects wrong rows of the file; None: the first column must hold texts.

    Returns: the rows, each with all columns; [] if `datasets` reads the file.

    Raises:
        InputError: the message names the file and, if one line is wrong, the line.
    """
    check_row = check or (lambda row, where: text_at(row, columns[0], where))
    expect_file(path)
    if kind_of(path) not in TEXT_KINDS:
        return []
    rows = file_rows(path, max_rows if path.stat().st_size > READ_WHOLE else None)
    if kind_of(path) in DELIMITERS:
        check_columns(rows.column_names, columns, f"task.data_files: {path}, line 1")
    read = range(len(rows))[:max_rows]
    for number in read:
        row, where = rows.written(number), rows.where(number)
        check_columns(row, columns, where)
        check_row(row, where)
    return [rows[number] for number in read]


def expect_file(path: Path) -> None:
    """Reject a file that is missing, empty or of an unknown kind. Folders that `datasets` saved are valid."""
    if (path / SAVED).is_file():
        return
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise InputError(f"task.data_files: {path} {what}")
    if path.stat().st_size == 0:
        raise InputError(f"task.data_files: {path} is empty")
    if not is_of_rows(path):
        kinds = ", ".join((*TEXT_KINDS, *OTHER_KINDS))
        raise InputError(
            f"task.data_files: {path}: expected a name that ends in {kinds}, or a packed text, such as "
            f".jsonl{PACKED[0]}"
        )


def is_of_rows(path: Path) -> bool:
    """Tell by its name whether a file may hold rows."""
    return kind_of(path) in TEXT_KINDS or path.suffix in OTHER_KINDS


def read_tabbed(
    path: Path, names: tuple[str, ...], expected: str, *, may_have_header: bool = False
) -> list[dict[str, str]]:
    """Return the rows of a file with tabs between its columns `names`.

    Args:
        expected: the columns in words, for the error.

    Raises:
        InputError: the file is missing, empty or not UTF-8, or a line does not have these columns.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"task.data_files: {path} can't be read as UTF-8 text: {error}") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        cells = tuple(line.rstrip("\r").split("\t"))
        if not line.strip() or (may_have_header and cells == names):
            continue
        if len(cells) != len(names):
            raise InputError(
                f"task.data_files: {path}, line {number}: expected {expected}, "
                f"got {len(cells)} columns: {line[:60]}"
            )
        rows.append(dict(zip(names, cells, strict=True)))
    if not rows:
        raise InputError(f"task.data_files: {path} holds no rows")
    return rows


def check_columns(there: Iterable[str], columns: Sequence[str], where: str) -> None:
    """Reject a row or file that lacks one of `columns`; the message lists the columns.

    Args:
        there: names, or a row or a value of each column, whose values may contain `a.b`.
    """
    names = [*there]
    inside = nested_names(there) if isinstance(there, Mapping) else []
    for column in columns:
        if column not in names and column not in inside:
            raise InputError(
                f"{where}: there is no column '{column}'{did_you_mean(column, [*names, *inside])}"
            )


def value_at(row: Mapping[str, Any], column: str) -> Any:
    """Return the value in a column, or at `a.b.c` inside column `a`; None if there is no value.

    >>> value_at({"extra_info": {"answer": 7}}, "extra_info.answer"), value_at({"a.b": 1}, "a.b")
    (7, 1)
    """
    value: Any = row
    for name in [column] if column in row else column.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def has_column(row: Mapping[str, Any], column: str) -> bool:
    """Return whether the row has the column, perhaps with a null in it.

    >>> has_column({"a": {"b": None}}, "a.b"), has_column({"a": None}, "a.b")
    (True, False)
    """
    outer, _, name = column.rpartition(".")
    inside = value_at(row, outer) if outer else None
    return column in row or (isinstance(inside, Mapping) and name in inside)


def nested_names(row: Mapping[str, Any]) -> list[str]:
    """Return the names of nested values in a row's columns.

    >>> nested_names({"id": 1, "reward_model": {"style": "rule", "ground_truth": "7"}})
    ['reward_model.style', 'reward_model.ground_truth']
    """
    names = []
    for name, value in row.items():
        if isinstance(value, Mapping):
            names += [f"{name}.{inner}" for inner in [*value, *nested_names(value)]]
    return names


def text_at(row: Mapping[str, Any], column: str, where: str) -> str:
    """Return the row's text in `column`.

    Raises:
        InputError: the value is not a text.
    """
    value = value_at(row, column)
    if not isinstance(value, str):
        raise InputError(f"{where}: expected a text in column '{column}', got {value!r:.200}")
    return value


def texts_at(row: Mapping[str, Any], column: str, where: str) -> tuple[str, ...]:
    """Return the row's texts in `column`, which holds a list or a single text.

    Raises:
        InputError: the column holds neither.
    """
    value = value_at(row, column)
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
