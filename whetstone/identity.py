"""Identity of an object, which decides whether a resumed run has the same reward.

A function is its code, without line numbers, and all that it uses: globals, closure, defaults, attributes.
Any other object is the contents of its pickle. The pickle's bytes would differ between two calls.
"""

import hashlib
from types import CodeType, FunctionType, ModuleType
from typing import Any

from whetstone.importable import is_importable
from whetstone.insides import PLAIN, insides

LENGTH = 12


def digest_of(value: Any) -> str:
    """Return a few characters that differ for different objects.

    >>> digest_of(lambda samples: [1.0 for _ in samples]) == digest_of(lambda samples: [1.0 for _ in samples])
    True
    >>> digest_of(lambda samples: [1.0 for _ in samples]) == digest_of(lambda samples: [2.0 for _ in samples])
    False

    Raises:
        RecursionError: lists, or other objects, are nested too deeply.
    """
    text = _described(value, {})
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:LENGTH]


def _described(value: Any, seen: dict[int, tuple[int, Any]]) -> str:
    """Describe a value by a text that is the same in every process.

    Args:
        seen: numbers of the objects so far, by id. It keeps the objects, so that no other gets their id.
    """
    if type(value) in (bytes, bytearray):
        return f"{type(value).__name__} {hashlib.sha256(value).hexdigest()}"
    if type(value) in PLAIN:
        return f"{type(value).__name__} {value!r}"
    if id(value) in seen:  # a function that calls itself
        return f"as {seen[id(value)][0]}"
    seen[id(value)] = len(seen), value
    if isinstance(value, CodeType):
        return _of_code(value, seen)
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, FunctionType | type) and is_importable(value):
        return f"{value.__module__}:{value.__qualname__}"
    if type(value) in (set, frozenset):
        return f"set {sorted(_described(element, dict(seen)) for element in value)}"
    parts = [f"{words}: {_described(part, seen)}" for words, part in insides(value)]
    if isinstance(value, FunctionType):
        parts.insert(0, _described(value.__code__, seen))
    return f"{type(value).__module__}.{type(value).__qualname__} {{{'; '.join(parts)}}}"


def _of_code(code: CodeType, seen: dict[int, tuple[int, Any]]) -> str:
    constants = [_described(constant, seen) for constant in code.co_consts]
    names = code.co_names, code.co_varnames, code.co_freevars
    return f"{code.co_code.hex()} {names} {constants}"
