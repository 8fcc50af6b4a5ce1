"""Texts of a file's columns as the file has them: `datasets` would make numbers and dates of some.

CSV     007 ─▶ 7, True ─▶ true          every cell of these columns is read as a text
JSON    "2020-01-01" ─▶ a date, 3 beside 3.5 ─▶ 3.0, "007" beside 3 ─▶ 7      read again where that is so
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

UNCHANGED = ("string", "large_string", "int64", "bool")  # types whose values are those of the JSON file


def csv_options(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the options of `datasets` by which the columns `names` keep their texts, "" and "NA" too.

    Empty cells of other columns stay null, and their numbers numbers.
    """
    if path.suffix != ".csv":
        return {}
    from pandas.io.parsers.readers import STR_NA_VALUES

    with path.open(encoding="utf-8-sig", newline="") as file:
        there = next(csv.reader(file), [])
    kept = [name for name in names if name in there]
    if not kept:
        return {}
    nulls = {name: sorted(STR_NA_VALUES) for name in there if name not in kept}
    return {"converters": dict.fromkeys(kept, str), "keep_default_na": False, "na_values": nulls}


def with_texts(rows: Any, path: Path, names: Sequence[str]) -> Any:
    """Return a JSON file's `datasets.Dataset` with the columns `names` as the file has them, in texts."""
    if path.suffix not in (".jsonl", ".json"):
        return rows
    for name in names:
        if name in rows.column_names and not _is_unchanged(rows.features[name]):
            texts = _texts([row.get(name) for row in _read(path)])
            if texts is not None and len(texts) == len(rows):
                rows = rows.remove_columns(name).add_column(name, texts)
    return rows


def of_number(value: Any) -> Any:
    """Return a number as its text, as answers of mathematical problems often are; others as they are.

    >>> of_number(3), of_number(0.5), of_number("007"), of_number(True)
    ('3', '0.5', '007', True)
    """
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _is_unchanged(feature: Any) -> bool:
    inner = getattr(feature, "feature", feature)  # of a list
    return isinstance(inner, dict) or getattr(inner, "dtype", None) in UNCHANGED


def _texts(values: Sequence[Any]) -> list[Any] | None:
    """Return texts, or lists of texts where one of them is a list; None: a value is neither."""
    found = [list(map(of_number, each)) if isinstance(each, list) else of_number(each) for each in values]
    if any(isinstance(each, list) for each in found):
        found = [[each] if isinstance(each, str) else each for each in found]
    flat = [text for each in found for text in (each if isinstance(each, list) else [each])]
    return found if all(text is None or isinstance(text, str) for text in flat) else None


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the file's rows; none where it is neither JSON Lines nor a list of objects."""
    with path.open(encoding="utf-8") as file:
        is_list = path.suffix == ".json" and next(filter(str.strip, file), "").lstrip().startswith("[")
        file.seek(0)
        try:
            rows: Iterable[Any] = json.load(file) if is_list else map(json.loads, filter(str.strip, file))
            yield from (row for row in rows if isinstance(row, dict))
        except ValueError:
            return
