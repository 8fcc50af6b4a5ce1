"""Identity of an object: what makes it the same reward when a run goes on.

A function is its code, without line numbers, and all that it uses: globals, closure, defaults, attributes.
The bytes of a pickle would differ between two calls with the same function.
"""

import hashlib
import pickle
from collections.abc import Mapping, Set
from types import CodeType, FunctionType, ModuleType
from typing import Any

from whetstone.importable import is_importable
from whetstone.insides import insides

PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis))
LENGTH = 12


def digest_of(value: Any) -> str:
    """Return a few characters that differ where the object does.

    >>> digest_of(lambda samples: [1.0 for _ in samples]) == digest_of(lambda samples: [1.0 for _ in samples])
    True
    >>> digest_of(lambda samples: [1.0 for _ in samples]) == digest_of(lambda samples: [2.0 for _ in samples])
    False
    """
    return hashlib.sha256(_told(value, {}).encode()).hexdigest()[:LENGTH]


def _told(value: Any, seen: dict[int, int]) -> str:
    """Describe a value by a text that is the same in every process."""
    if isinstance(value, PLAIN):
        return f"{type(value).__name__} {value!r}"
    if id(value) in seen:  # a function that calls itself
        return f"as {seen[id(value)]}"
    seen[id(value)] = len(seen)
    if isinstance(value, CodeType):
        return _of_code(value, seen)
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, FunctionType | type) and is_importable(value):
        return f"{value.__module__}:{value.__qualname__}"
    if isinstance(value, Set):
        return f"set {sorted(_told(each, dict(seen)) for each in value)}"
    parts = [f"{words}: {_told(each, seen)}" for words, each in insides(value)]
    if isinstance(value, FunctionType):
        parts.insert(0, _told(value.__code__, seen))
    elif not parts and not isinstance(value, Mapping | list | tuple | type):
        parts.append(_of_bytes(value))
    return f"{type(value).__module__}.{type(value).__qualname__} {{{'; '.join(parts)}}}"


def _of_code(code: CodeType, seen: dict[int, int]) -> str:
    constants = [_told(each, seen) for each in code.co_consts]
    names = code.co_names, code.co_varnames, code.co_freevars
    return f"{code.co_code.hex()} {names} {constants}"


def _of_bytes(value: Any) -> str:
    """Describe an object without parts that Python shows, such as an array."""
    try:
        return hashlib.sha256(pickle.dumps(value, protocol=4)).hexdigest()
    except Exception:  # what can't be pickled is refused elsewhere
        return "?"
