"""Single values of rows: texts of numbers, truth values as tables write them, and empty cells."""

from typing import Any

WORDS = {"true": True, "yes": True, "false": False, "no": False}
TRUTHS = WORDS | {"1": True, "1.0": True, "0": False, "0.0": False}


def as_text(value: Any) -> Any:
    """Return a number as its text, as answers of mathematical problems often are; others as they are.

    >>> as_text(3), as_text(0.5), as_text("007"), as_text(True), as_text(float("nan"))
    ('3', '0.5', '007', True, nan)
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return str(value) if is_number else value


def is_blank(value: Any) -> bool:
    """Return whether a cell is empty: null in JSON, nothing between two commas in a table.

    >>> is_blank(None), is_blank(""), is_blank(" "), is_blank(0)
    (True, True, True, False)
    """
    return value is None or (isinstance(value, str) and not value.strip()) or value != value


def truth_of(value: Any) -> bool | None:
    """Return a truth value, or the word or number for one, as bool; None: it is something else.

    >>> truth_of(True), truth_of("no"), truth_of(1.0), truth_of("0"), truth_of(2), truth_of("good")
    (True, False, True, False, None, None)
    """
    return TRUTHS.get(str(value).strip().lower()) if isinstance(value, bool | int | float | str) else None


def is_truth(value: Any) -> bool:
    """Return whether a value is true or false, or the word for it, and no number."""
    return isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in WORDS)
