"""Write a table with highlighted cells as one line of text, as ToTTo's baselines do (Parikh et al. 2020)."""

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.errors import InputError

Cell = Mapping[str, Any]  # value, is_header, column_span
Table = Sequence[Sequence[Cell]]
Highlighted = Sequence[Sequence[int]]  # (row, index in the row)


def subtable_text(table: Table, highlighted: Highlighted, titles: Mapping[str, str] | None = None) -> str:
    """Write only the highlighted cells, each with its headers.

    >>> header = {"value": "Year", "is_header": True, "column_span": 1}
    >>> subtable_text([[header], [{"value": "1999", "is_header": False, "column_span": 1}]], [(1, 0)])
    '<table> <cell> 1999 <col_header> Year </col_header> </cell> </table>'
    """
    grid = _Grid(table)
    cells = "".join(grid.cell_text("cell", row, place) for row, place in highlighted)
    return f"{_titles_text(titles)}<table> {cells}</table>"


def full_table_text(table: Table, highlighted: Highlighted, titles: Mapping[str, str] | None = None) -> str:
    """Write all rows and cells, and mark the highlighted cells."""
    grid = _Grid(table)
    marked = {(row, place) for row, place in highlighted}
    rows = []
    for row, cells in enumerate(table):
        kinds = ["highlighted_cell" if (row, place) in marked else "cell" for place in range(len(cells))]
        text = "".join(grid.cell_text(kind, row, place) for place, kind in enumerate(kinds))
        rows.append(f"<row> {text}</row> ")
    return f"{_titles_text(titles)}<table> {''.join(rows)}</table>"


def check_table(table: Any, highlighted: Any, where: str) -> None:
    """Check the form of a table and its highlighted cells.

    Raises:
        InputError: the table is not a list of rows of cells, or lacks a highlighted cell.
    """
    if not isinstance(table, list) or not all(isinstance(row, list) for row in table):
        raise InputError(f"{where}: expected a list of rows of cells in column 'table', got {table!r:.120}")
    for row in table:
        for cell in row:
            whole = isinstance(cell, Mapping) and {"value", "is_header", "column_span"} <= cell.keys()
            if not whole or not isinstance(cell["column_span"], int):
                raise InputError(
                    f"{where}: expected cells {{value, is_header, column_span}} in column 'table', "
                    f"got {cell!r:.120}"
                )
    for pair in highlighted if isinstance(highlighted, list) else [highlighted]:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(n, int) for n in pair):
            raise InputError(
                f"{where}: expected pairs [row, cell] in column 'highlighted_cells', got {pair!r:.120}"
            )
        if not (0 <= pair[0] < len(table) and 0 <= pair[1] < len(table[pair[0]])):
            raise InputError(f"{where}: the highlighted cell {pair} is not in the table")


class _Grid:
    """Columns that each cell of a table covers, and each column's header cells."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._spans: list[list[range]] = []
        self._headers: dict[int, list[tuple[int, int]]] = {}
        for row, cells in enumerate(table):
            column, spans = 0, []
            for place, cell in enumerate(cells):
                spans.append(range(column, column + cell["column_span"]))
                column = spans[-1].stop
                if cell["is_header"]:
                    for covered in spans[-1]:
                        self._headers.setdefault(covered, []).append((row, place))
            self._spans.append(spans)

    def cell_text(self, kind: str, row: int, place: int) -> str:
        cells = self._table[row]
        above = [_header_text("col_header", cell) for cell in self._headers_above(row, place)]
        left = [_header_text("row_header", cell) for cell in cells[:place] if cell["is_header"]]
        return f"<{kind}> {cells[place]['value']} {''.join(above + left)}</{kind}> "

    def _headers_above(self, row: int, place: int) -> list[Cell]:
        """Return the header cells above that share a column with this cell, the topmost first."""
        places = {
            where
            for column in self._spans[row][place]
            for where in self._headers.get(column, ())
            if where[0] < row
        }
        return [self._table[above][there] for above, there in sorted(places)]


def _header_text(kind: str, cell: Cell) -> str:
    return f"<{kind}> {cell['value']} </{kind}> "


def _titles_text(titles: Mapping[str, str] | None) -> str:
    """Write the titles that are not empty.

    >>> _titles_text({"page_title": "Oslo", "section_title": ""})
    '<page_title> Oslo </page_title> '
    """
    return "".join(f"<{kind}> {title} </{kind}> " for kind, title in (titles or {}).items() if title)
