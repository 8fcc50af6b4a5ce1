"""Turn Python values into overrides on the command line."""

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from whetstone.errors import InputError


def words(overrides: Mapping[str, Any]) -> list[str]:
    """Return a word for each override; `__` in a key is a dot.

    >>> words({"iterations": 5, "rollout__max_tokens": 60, "algorithm.kl.coefficient": 0.01})
    ['iterations=5', 'rollout.max_tokens=60', 'algorithm.kl.coefficient=0.01']

    Raises:
        InputError: a configuration can't hold a value.
    """
    return [f"{key.replace('__', '.')}={_written(value, key)}" for key, value in overrides.items()]


def _written(value: Any, key: str) -> str:
    """Write a value in Hydra's grammar.

    >>> _written({"name": "length", "target": None, "clip": (0, 1.5)}, "reward")
    '{name: "length", target: null, clip: [0, 1.5]}'
    """
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int():
            return repr(int(value))
        case float():  # numpy's float64 is a float, and its repr shows the type
            return repr(float(value))
        case str() | os.PathLike():
            return _quoted(os.fspath(value))
        case Mapping():
            return (
                "{" + ", ".join(f"{name}: {_written(element, key)}" for name, element in value.items()) + "}"
            )
        case list() | tuple():
            return "[" + ", ".join(_written(element, key) for element in value) + "]"
    if callable(as_python := getattr(value, "item", None)):  # a number of numpy, pandas or torch
        return _written(as_python(), key)
    kind, dotted = type(value), key.replace("__", ".")
    by_class = (
        ""
        if kind.__module__.partition(".")[0] in sys.stdlib_module_names
        else (f"the class itself, {dotted}={kind.__name__}, if the option takes a class; else ")
    )
    raise InputError(
        f"{dotted}: got {value!r:.200}; expected {by_class}text, a number, a truth value, None, a path, "
        "a list or a dict"
    )


def _quoted(text: str) -> str:
    r"""Put a text in double quotes; backslashes are escaped only before a quote.

    >>> print(_quoted('say "no"'), _quoted("C:\\"), _quoted(r"\d"))
    "say \"no\"" "C:\\" "\d"
    """
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', text)
    return '"' + re.sub(r"(\\+)$", r"\1\1", escaped) + '"'
