"""Plain values as JSON, the messages between the tests' process and the program's.

    None, bool, str, float, small int      unchanged
    list of only these                     ["flat", [1, 2]]
    other plain values                     ["tuple", [1, 2]], ["dict", [[key, value], …]], ["int", "0x…"], …
    other objects                          the result of `other`

A read value has exactly one of Python's types, whatever its class was. Nothing is executed.
"""

import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from operator import is_
from typing import Any

Other = Callable[[Any], Any]
SMALL = 2**53
SIMPLE = frozenset((str, float, bool, type(None)))
SEQUENCES: dict[str, Callable[..., Any]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque,
}  # fmt: skip
MAPPINGS: dict[str, Callable[..., Any]] = {
    "dict": dict, "OrderedDict": OrderedDict, "Counter": Counter, "defaultdict": dict,
}  # fmt: skip
MUTABLE = (list, dict, set, deque, bytearray)
# Types that are values: `type(x)`, and what a defaultdict makes.
TYPES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(int, float, str, bool, bytes, list, tuple, dict, set, frozenset, complex, bytearray),
        *(object, type(None), Decimal, Fraction, datetime, date, time, timedelta, Counter, deque),
    )
}
TYPE_NAMES = {kind: name for name, kind in TYPES.items()}
# Subclasses of these are sent as their base.
BASES = (bool, int, float, str, bytes, bytearray, tuple, list, frozenset, set, dict, deque, complex)
TEXTS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "int": (int, hex, lambda text: int(text, 16)),
    "bytes": (bytes, lambda value: str(value, "latin-1"), lambda text: text.encode("latin-1")),
    "bytearray": (
        bytearray,
        lambda value: str(value, "latin-1"),
        lambda text: bytearray(text.encode("latin-1")),
    ),
    "Decimal": (Decimal, str, Decimal),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
}
NUMBERS: dict[str, tuple[type, Callable[[Any], list[Any]], Callable[..., Any]]] = {
    "complex": (complex, lambda value: [value.real, value.imag], complex),
    "Fraction": (Fraction, lambda value: [value.numerator, value.denominator], Fraction),
    "timedelta": (timedelta, lambda value: [value.days, value.seconds, value.microseconds], timedelta),
    "range": (range, lambda value: [value.start, value.stop, value.step], range),
    "slice": (slice, lambda value: [value.start, value.stop, value.step], slice),
}
DTYPE = re.compile(r"[<>|=]?[biufcSU]\d{1,6}")  # a type of NumPy


def written(value: Any, other: Other) -> Any:
    """Convert a value to JSON data.

    >>> written([1, (2.5, 2**60)], repr), written([{1}], repr), written(print, repr)
    (['list', [1, ['tuple', [2.5, ['int', '0x1000000000000000']]]]], ['list', [['set', [1]]]], \
'<built-in function print>')
    """
    kind = type(value)
    if kind in SIMPLE:
        return value
    if kind is int:
        return value if -SMALL < value < SMALL else ["int", hex(value)]
    if kind is list and _is_flat(value):
        return ["flat", value]
    name = kind.__name__
    if kind is deque:
        return ["deque", [written(one, other) for one in value], value.maxlen]
    if SEQUENCES.get(name) is kind:
        return [name, [written(one, other) for one in value]]
    if name in MAPPINGS and kind in (dict, OrderedDict, Counter, defaultdict):
        pairs = [[written(key, other), written(one, other)] for key, one in value.items()]
        factory = getattr(value, "default_factory", None)
        return [name, pairs, TYPE_NAMES.get(factory)]
    if name in TEXTS and TEXTS[name][0] is kind:
        return [name, TEXTS[name][1](value)]
    if name in NUMBERS and NUMBERS[name][0] is kind:
        return [name, [written(one, other) for one in NUMBERS[name][1](value)]]
    if kind is type and (known := TYPE_NAMES.get(value)):
        return ["type", known]
    return _array(value, other) or other(value)


def read(encoded: Any, other: Other) -> Any:
    """Convert JSON data to its value.

    Raises:
        ValueError, TypeError, LookupError: the data are no value.

    >>> read(written([{1: float("inf")}, b"a", 1j, {2}, (10**20,)], repr), repr)
    [{1: inf}, b'a', 1j, {2}, (100000000000000000000,)]
    """
    if type(encoded) is not list:
        if type(encoded) is dict:
            raise ValueError("no value")
        return encoded
    name, inner = encoded[0], encoded[1]
    if name == "flat":
        return list(inner)
    if name in SEQUENCES:
        items = [read(one, other) for one in inner]
        return deque(items, encoded[2]) if name == "deque" else SEQUENCES[name](items)
    if name in MAPPINGS:
        pairs = {read(key, other): read(one, other) for key, one in inner}
        return defaultdict(TYPES.get(encoded[2]), pairs) if name == "defaultdict" else MAPPINGS[name](pairs)
    if name in TEXTS:
        return TEXTS[name][2](inner)
    if name in NUMBERS:
        return NUMBERS[name][2](*(read(one, other) for one in inner))
    if name in ("array", "scalar"):
        return _read_array(encoded, other)
    return TYPES[inner] if name == "type" else other(encoded)


def base_of(value: Any) -> Any:
    """Return the plain value of an object of a derived class, else the object.

    >>> base_of(type("Mine", (int,), {})(3)), base_of(type("Also", (list,), {})([1]))
    (3, [1])
    """
    base = next((kind for kind in BASES if isinstance(value, kind)), None)
    return value if base is None else base(base.__iter__(value)) if base in (list, tuple) else base(value)


def updated(old: Any, new: Any) -> Any:
    """Make the old value equal to the new one in place and return it; if impossible, return the new one.

    >>> inner = [1]; outer = {"a": inner}
    >>> updated(outer, {"a": [2], "b": 3}) is outer, outer["a"] is inner, outer
    (True, True, {'a': [2], 'b': 3})
    """
    if isinstance(old, list | tuple) and isinstance(new, type(old)):
        if len(old) == len(new):
            new = type(new)(map(updated, old, new))
        if isinstance(old, tuple):
            return old if all(map(is_, old, new)) and len(old) == len(new) else new
        old[:] = new
    elif isinstance(old, dict) and isinstance(new, dict):
        inner = {key: updated(old.get(key), one) for key, one in new.items()}
        old.clear()
        old.update(inner)
    elif isinstance(old, set | deque) and isinstance(new, type(old)):
        old.clear()
        old.update(new) if isinstance(old, set) else old.extend(new)
    elif isinstance(old, bytearray) and isinstance(new, bytearray):
        old[:] = new
    elif hasattr(old, "dtype") and old.shape == new.shape != ():
        old[...] = new
    else:
        return new
    return old


def _is_flat(values: list[Any]) -> bool:
    kinds = set(map(type, values))
    if kinds == {int}:
        return min(values) > -SMALL and max(values) < SMALL
    return kinds <= SIMPLE


def _array(value: Any, other: Other) -> Any:
    """Convert NumPy's array or number to JSON data; None for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or (type(value) is not numpy.ndarray and not isinstance(value, numpy.generic)):
        return None
    if not DTYPE.fullmatch(value.dtype.str):
        return None
    kind = "scalar" if isinstance(value, numpy.generic) else "array"
    return [kind, written(value.reshape(-1).tolist(), other), value.dtype.str, list(value.shape)]


def _read_array(encoded: Sequence[Any], other: Other) -> Any:
    import numpy

    kind, inner, dtype, shape = encoded
    if not DTYPE.fullmatch(dtype):
        raise ValueError(f"no type of numbers: {dtype!r:.40}")
    array = numpy.array(read(inner, other), dtype=dtype).reshape([int(size) for size in shape])
    return array[()] if kind == "scalar" else array


def is_mutable(value: Any) -> bool:
    """Return whether a value or its content can be changed in place."""
    if isinstance(value, tuple):
        return any(map(is_mutable, value))
    return isinstance(value, MUTABLE) or hasattr(value, "dtype")


def as_mapping(message: Any) -> Mapping[str, Any]:
    """Return the message, which must be a mapping."""
    if not isinstance(message, dict):
        raise ValueError("a message is no mapping")
    return message
