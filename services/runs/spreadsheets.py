"""Cells of CSV files for spreadsheets, which execute texts that begin like a formula."""

from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # beginnings of a formula


def as_text(cell: Any) -> Any:
    """Return a cell with an apostrophe before a text that a spreadsheet would execute; numbers unchanged.

    >>> as_text("=1+1"), as_text("ppo"), as_text(-0.5)
    ("'=1+1", 'ppo', -0.5)
    """
    return f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell


def text_of(cell: str) -> str:
    """Return the text from which `as_text` made the cell.

    >>> text_of("'=1+1"), text_of("'tis")
    ('=1+1', "'tis")
    """
    return cell[1:] if cell[:1] == "'" and _is_formula(cell) else cell


def _is_formula(cell: str) -> bool:
    return cell.lstrip("'").startswith(FORMULA)
