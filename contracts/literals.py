"""Values as texts that keep tuples, sets and numbers as keys, which JSON doesn't."""

import ast
import json
from typing import Any


def packed(value: Any) -> str:
    """Return a value as a Python literal, or as JSON if no literal equals it.

    >>> packed({1: ("a", None)}), unpacked(packed({1: ("a", None)}))
    ("{1: ('a', None)}", {1: ('a', None)})
    """
    text = repr(value)
    try:
        if ast.literal_eval(text) == value:
            return text
    except (ValueError, SyntaxError):
        pass
    return "json:" + json.dumps(value)


def unpacked(text: str) -> Any:
    """Return the value of a text that `packed` made, without executing code in it."""
    return json.loads(text.removeprefix("json:")) if text.startswith("json:") else ast.literal_eval(text)
