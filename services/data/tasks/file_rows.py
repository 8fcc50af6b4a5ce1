"""Rows of a user's file, unchanged. `datasets` would turn some texts into numbers and dates.

.jsonl        a row in each line
.json         a list of rows, one row, or a row in each line
.csv, .tsv    a row in each record, under the names in the first record; every cell is a text

A row is parsed when it is read. Memory holds only the places where rows begin and end.
"""

import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, overload

from contracts.errors import InputError
from contracts.whole_texts import expect_whole
from services.data.tasks.cells import holds_nothing
from services.data.tasks.file_bytes import FileBytes, Place, kind_of, text_of
from services.data.tasks.tables import Table, record

Row = dict[str, Any]
DELIMITERS = {".csv": ",", ".tsv": "\t"}
_MAY_BE_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")  # half of a surrogate pair, in JSON or bare
_BLANK = re.compile(r"[\s\ufeff]*")


class FileRows(Sequence[Row]):
    """Rows of one file. Each row has every column of the file, None for columns that it leaves out.

    Example: rows of `{"prompt": "3 + 4 ?", "gold": "007"}` have `column_names == ["prompt", "gold"]`.
    """

    def __init__(
        self,
        content: FileBytes,
        parse: Callable[[str], Row],
        places: Sequence[array],  # type: ignore[type-arg]
        examples: Mapping[str, Any],
        unit: str,
    ) -> None:
        self.content, self.examples, self.column_names = content, examples, list(examples)
        self._parse, self._places, self._unit = parse, places, unit
        self._empty = dict.fromkeys(self.column_names)

    def __len__(self) -> int:
        return len(self._places[0])

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        begins, ends, _ = self._places
        text = self.content.read(begins[index], ends[index]).decode()
        return self._empty | self._parse(text)

    def written(self, index: int) -> Row:
        """Return a row with only its own columns."""
        begins, ends, _ = self._places
        return self._parse(self.content.read(begins[index], ends[index]).decode())

    def where(self, index: int) -> str:
        """Name a row's place, for messages."""
        return f"task.data_files: {self.content.path}, {self._unit} {self._places[2][index]}"

    def select(self, rows: Iterable[int]) -> "FileRows":
        """Return only these rows, in this order."""
        rows = list(rows)
        places = [array("q", (offsets[row] for row in rows)) for offsets in self._places]
        return FileRows(self.content, self._parse, places, self.examples, self._unit)


def file_rows(path: Path, max_rows: int | None = None) -> FileRows:
    """Find the rows of a JSON or CSV file, or its first `max_rows`.

    Raises:
        InputError: the file is empty, not UTF-8 or not JSON, or a row is not an object; it names the line.
    """
    stat = path.stat()
    return _file_rows(path, max_rows, (stat.st_ino, stat.st_size, stat.st_mtime_ns))


@lru_cache(maxsize=16)  # a run reads splits, columns and first rows in succession
def _file_rows(path: Path, max_rows: int | None, _state: tuple[int, int, int]) -> FileRows:
    content, kind = FileBytes(path), kind_of(path)
    where = f"task.data_files: {path}"
    if kind in DELIMITERS:
        table = Table(content, DELIMITERS[kind], where)
        parse = partial(record, table.header, DELIMITERS[kind])
        return _indexed(content, parse, islice(table.rows(), max_rows), "line", where, table.header)
    if kind == ".json" and (rows := _of_json(content, where)) is not None:
        return _indexed(content, json.loads, islice(rows, max_rows), "row", where)
    parsed = ((place, _json(text, place, where)) for place, text in _lines(content, where))
    return _indexed(content, json.loads, islice(parsed, max_rows), "line", where)


def _indexed(
    content: FileBytes,
    parse: Callable[[str], Row],
    rows: Iterable[tuple[Place, Row]],
    unit: str,
    where: str,
    header: Iterable[str] = (),
) -> FileRows:
    """Record where rows begin and end, and the first value of each column that is not empty."""
    examples: dict[str, Any] = dict.fromkeys(header)
    begins, ends, numbers = array("q"), array("q"), array("q")
    for place, row in rows:
        begins.append(place.begin)
        ends.append(place.end)
        numbers.append(place.number)
        for name, value in row.items():
            if holds_nothing(examples.get(name)):
                examples[name] = value
    if not begins:
        raise InputError(f"{where} holds no rows")
    return FileRows(content, parse, (begins, ends, numbers), examples, unit)


def _lines(content: FileBytes, where: str) -> Iterator[tuple[Place, str]]:
    """Yield the lines that are not blank. A file joined from several may have marks inside."""
    begin = content.begin
    for number, line in enumerate(content.lines(), start=1):
        end = begin + len(line)
        text = text_of(line, f"{where}, line {number}")
        skipped = _BLANK.match(text)
        if skipped is not None and skipped.end() < len(text):
            yield Place(begin + len(skipped.group().encode()), end, number), text[skipped.end() :].rstrip()
        begin = end


def _of_json(content: FileBytes, where: str) -> Iterable[tuple[Place, Row]] | None:
    """Return the rows of a list, or the only row; None if there is a row in each line."""
    text = text_of(content.read(content.begin, None), where)
    begin = _blank(text, 0)
    if text[begin : begin + 1] == "[":
        return _of_list(text, begin, content.begin, where)
    try:
        row = json.loads(text[begin:], object_pairs_hook=_of_pairs)
    except (ValueError, RecursionError):
        return None
    place = Place(content.begin + len(text[:begin].encode()), content.begin + len(text.encode()), 1)
    return [(place, _checked(row, text, f"{where}, row 1"))]


def _of_list(text: str, begin: int, offset: int, where: str) -> Iterator[tuple[Place, Row]]:
    """Yield the rows of a list one after the other, so that the first ones are available at once."""
    decoder = json.JSONDecoder(object_pairs_hook=_of_pairs)
    at, before, number = _blank(text, begin + 1), 0, 0
    if text[at : at + 1] == "]":
        return _expect_end(text, at + 1, where)
    while True:
        number += 1
        try:
            row, end = decoder.raw_decode(text, at)
            after = _blank(text, end)
            if text[after : after + 1] not in (",", "]"):
                raise json.JSONDecodeError("Expecting ',' delimiter", text, after)
        except (ValueError, RecursionError) as error:
            raise _no_json(error, where, text) from None
        offset += len(text[before:at].encode())
        length = len(text[at:end].encode())
        yield Place(offset, offset + length, number), _checked(row, text[at:end], f"{where}, row {number}")
        if text[after] == "]":
            return _expect_end(text, after + 1, where)
        offset, before, at = offset + length, end, _blank(text, after + 1)


def _expect_end(text: str, at: int, where: str) -> None:
    """Reject a file that continues after its list."""
    if (behind := _blank(text, at)) < len(text):
        raise _no_json(json.JSONDecodeError("Extra data after the list", text, behind), where, text)


def _json(text: str, place: Place, where: str) -> Row:
    try:
        row = json.loads(text, object_pairs_hook=_of_pairs)
        return _checked(row, text, f"{where}, line {place.number}")
    except (ValueError, RecursionError) as error:
        raise _no_json(error, f"{where}, line {place.number}", text, of_line=True) from None


def _no_json(error: Exception, where: str, text: str, *, of_line: bool = False) -> InputError:
    if not isinstance(error, json.JSONDecodeError):
        reason = "is nested too deep" if isinstance(error, RecursionError) else str(error)
        return InputError(f"{where}: not JSON that can be read: {reason}")
    at = f"column {error.colno}" if of_line else f"line {error.lineno}, column {error.colno}"
    shown = f". Got: {text.strip()[:60]}" if of_line else ""
    return InputError(f"{where}, {at}: not JSON: {error.msg}{shown}")


def _of_pairs(pairs: list[tuple[str, Any]]) -> Row:
    """Reject an object that repeats a name, because JSON parsers would keep only the last value."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name '{twice}' occurs twice in one object")
    return row


def _checked(row: Any, text: str, where: str) -> Row:
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected an object {{…}}, got {json.dumps(row)[:60]}")
    if _MAY_BE_HALF.search(text):
        expect_whole(row, where)
    return row


def _blank(text: str, at: int) -> int:
    """Return the first place from `at` on that is not blank."""
    match = _BLANK.match(text, at)
    return match.end() if match is not None else at
