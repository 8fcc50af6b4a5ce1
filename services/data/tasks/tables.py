"""Records of a CSV or TSV file, under the names in the first record. Every cell stays a text."""

import csv
from collections.abc import Iterator, Sequence
from typing import Any

from contracts.errors import InputError
from services.data.tasks.file_bytes import FileBytes, Place, text_of

csv.field_size_limit(2**31 - 1)  # a cell may be a book

QUOTING = 'a cell with quotes, delimiters or line ends in it needs quotes, such as "the ""best"", it says"'
SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons"}
EMPTY = "An empty cell needs its delimiter, at the end of a line, too"


class Table:
    """Table with a header.

    A missing name, as for the index in pandas' files, becomes `Unnamed: 0`, as in pandas.

    Example: `Table(content, ",", "here").header == ["prompt", "answer"]`
    """

    def __init__(self, content: FileBytes, delimiter: str, where: str) -> None:
        self._content, self._delimiter, self._where = content, delimiter, where
        self._end = content.begin
        self._reader = csv.reader(self._lines(), delimiter=delimiter, strict=True)
        _, names = next(self._records(), (None, []))
        self.header = [name if name.strip() else f"Unnamed: {place}" for place, name in enumerate(names)]
        others = set(SEPARATORS) - {delimiter}
        if len(names) == 1 and others & set(names[0]):
            raise InputError(
                f"{where}, line 1: expected {SEPARATORS[delimiter]} between columns, because of the file's "
                f"ending; got one column, {names[0]!r:.60}. If it is one column, rename it"
            )
        for name in self.header:
            if self.header.count(name) > 1:
                raise InputError(f"{where}, line 1: column '{name}' occurs twice; expected different names")

    def rows(self) -> Iterator[tuple[Place, dict[str, Any]]]:
        """Yield the rows after the header, once.

        Raises:
            InputError: a row has more or fewer cells than the header, or a quote is open.
        """
        for place, cells in self._records():
            if len(cells) != len(self.header):
                remedy = QUOTING.capitalize() if len(cells) > len(self.header) else EMPTY
                raise InputError(
                    f"{self._where}, line {place.number}: expected {len(self.header)} cells, as in the "
                    f"header, got {len(cells)}: {self._delimiter.join(cells)[:60]}. {remedy}"
                )
            yield place, dict(zip(self.header, cells, strict=True))

    def _records(self) -> Iterator[tuple[Place, list[str]]]:
        while True:
            begin = self._end
            try:
                cells = next(self._reader, None)
            except csv.Error as error:
                at = f"{self._where}, line {self._reader.line_num}"
                raise InputError(f"{at}: {error}; {QUOTING}") from None
            if cells is None:
                return
            if cells:
                yield Place(begin, self._end, self._reader.line_num), cells

    def _lines(self) -> Iterator[str]:
        for number, line in enumerate(self._content.lines(), start=1):
            self._end += len(line)
            yield text_of(line, f"{self._where}, line {number}")


def record(header: Sequence[str], delimiter: str, text: str) -> dict[str, Any]:
    """Return the row of one record. Its text is one piece, so line ends in it belong to a cell.

    >>> record(["zip", "city"], ",", '02134,"Boston,\\nMA"')
    {'zip': '02134', 'city': 'Boston,\\nMA'}
    """
    return dict(zip(header, next(csv.reader([text], delimiter=delimiter, strict=True)), strict=True))
