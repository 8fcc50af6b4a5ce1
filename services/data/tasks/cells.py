"""Single values of rows: numbers as texts, truth values as tables write them, and empty cells."""

import json
import re
from typing import Any

from contracts.conversations.messages import EXAMPLE, is_conversation
from contracts.errors import InputError

WORDS = {"true": True, "yes": True, "false": False, "no": False}
TRUTHS = WORDS | {"1": True, "1.0": True, "0": False, "0.0": False}
KEYS = (("'role':", "'content':"), ("'from':", "'value':"))  # of messages, as Python prints them
_OPENS, _OF_TABLE = re.compile(r"\[\s*\{"), re.compile(r"\.[ct]sv(\.\w+)?, line")


def as_text(value: Any) -> Any:
    """Return a number as its text, because answers of mathematical problems may be numbers; others unchanged.

    >>> as_text(3), as_text(0.5), as_text("007"), as_text(True), as_text(float("nan"))
    ('3', '0.5', '007', True, nan)
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return str(value) if is_number else value


def is_blank(value: Any) -> bool:
    """Return whether a cell is empty: null in JSON, or nothing between two commas in a table.

    >>> is_blank(None), is_blank(""), is_blank(" "), is_blank(0)
    (True, True, True, False)
    """
    return value is None or (isinstance(value, str) and not value.strip()) or value != value


def holds_nothing(value: Any) -> bool:
    """Return whether a value says nothing about its column: an empty cell, list or object.

    >>> holds_nothing([]), holds_nothing({}), holds_nothing(" "), holds_nothing([0])
    (True, True, True, False)
    """
    return is_blank(value) or (isinstance(value, list | dict) and not value)


def in_json(value: Any, where: str = "") -> Any:
    """Return the conversation in a JSON text, as some tables hold it; return any other value unchanged.

    >>> in_json('[{"role": "user", "content": "Hi!"}]'), in_json("[1] is a list")
    ([{'role': 'user', 'content': 'Hi!'}], '[1] is a list')

    Args:
        where: place of the value.

    Raises:
        InputError: a table has a list of messages that is not JSON, as pandas and `datasets` write it.
    """
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        if _OF_TABLE.search(where):
            refuse_printed(value, where)
        return value
    return parsed if is_conversation(parsed) else value


def refuse_printed(value: Any, where: str) -> None:
    """Raise InputError if the value is a list of messages in Python's form."""
    if isinstance(value, str) and _is_printed(value.strip()):
        raise InputError(
            f"{where}: a list of messages that is not JSON, got {value!r:.80}; expected JSON such as "
            f"{EXAMPLE}. A file in JSON Lines or Parquet keeps messages; a CSV file needs json.dumps"
        )


def _is_printed(text: str) -> bool:
    """Return whether the text is a list of messages in Python's form.

    >>> _is_printed("[{'role': 'user', 'content': 'Hi'}]"), _is_printed("[{'from': 'Paris', 'to': 'Rome'}]")
    (True, False)
    """
    has_ends = _OPENS.match(text) is not None and text.endswith("]")
    return has_ends and any(all(key in text for key in keys) for keys in KEYS)


def truth_of(value: Any) -> bool | None:
    """Return a truth value, or the word or number for one, as bool; None for anything else.

    >>> truth_of(True), truth_of("no"), truth_of(1.0), truth_of("0"), truth_of(2), truth_of("good")
    (True, False, True, False, None, None)
    """
    return TRUTHS.get(str(value).strip().lower()) if isinstance(value, bool | int | float | str) else None


def is_truth(value: Any) -> bool:
    """Return whether a value is true or false, or a word for it, but not a number."""
    return isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in WORDS)


def is_bool(value: Any) -> bool:
    """Return whether a value is true or false, or one of these words."""
    return isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in ("true", "false"))
