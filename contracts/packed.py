"""Sequences of numbers as bytes, for the way between processes: a token takes 2 to 4 bytes, and no object.

    (15, 17, 2)     ─▶ ("H", b"…")      2 bytes a number, or 4 or 8 where one is large
    (4, 4, 4)       ─▶ ("=", (4, 3))    three times the same
    (-0.5, -1.25)   ─▶ ("f", b"…")      4 bytes a number if that loses nothing, else 8

Nothing is rounded: what comes out equals what went in.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

Packed = tuple[str, Any]  # the kind, and its data

WHOLE = ("H", "i", "q")  # codes of whole numbers in `array` and in NumPy, the shortest first
SHORT, LONG = "f", "d"
SAME, PLAIN = "=", "()"  # one number many times; a tuple that no array holds
SIZES = {code: np.dtype(code).itemsize for code in (*WHOLE, SHORT, LONG)}


def packed(numbers: Sequence[float]) -> Packed:
    """Return numbers in as few bytes as they need.

    >>> packed((4, 4, 4)), packed((15, 17, 2))[0], packed((70_000, 1))[0], packed((0.1, 0.2))[0]
    (('=', (4, 3)), 'H', 'i', 'd')
    """
    if not numbers:
        return PLAIN, ()
    first = numbers[0]
    if type(first) is float:
        return _floats(numbers)
    if type(first) is int and numbers[-1] == first and numbers.count(first) == len(numbers):
        return SAME, (first, len(numbers))
    for code in WHOLE:
        try:
            return code, array(code, numbers).tobytes()
        except OverflowError:
            continue
        except TypeError:
            break
    return PLAIN, tuple(numbers)


def _floats(numbers: Sequence[float]) -> Packed:
    try:
        held = np.frombuffer(array(LONG, numbers), LONG)
    except TypeError:
        return PLAIN, tuple(numbers)
    with np.errstate(over="ignore"):
        short = held.astype(SHORT)  # engines seldom compute in more
    is_exact = np.array_equal(short.astype(LONG).view("q"), held.view("q"))
    return (SHORT, short.tobytes()) if is_exact else (LONG, held.tobytes())


def unpacked(pack: Packed) -> tuple[Any, ...]:
    """Return the numbers.

    >>> unpacked(packed((15, 17, 2))), unpacked(packed((0.1, -0.0))), unpacked(packed((4, 4)))
    ((15, 17, 2), (0.1, -0.0), (4, 4))
    """
    kind, held = pack
    if kind in SIZES:
        return tuple(np.frombuffer(held, kind).tolist())
    return (held[0],) * held[1] if kind == SAME else held


def as_array(pack: Packed) -> np.ndarray:
    """Return the numbers as an array over the same bytes; never write to it.

    >>> as_array(packed((15, 17, 2))).tolist(), as_array(packed((4, 4))).tolist()
    ([15, 17, 2], [4, 4])
    """
    kind, held = pack
    if kind in SIZES:
        return np.frombuffer(held, kind)
    return np.full(held[1], held[0]) if kind == SAME else np.array(held)


def length(pack: Packed) -> int:
    """Return the count of numbers without unpacking them.

    >>> length(packed((15, 17, 2))), length(packed((4, 4))), length(packed(()))
    (3, 2, 0)
    """
    kind, held = pack
    if kind in SIZES:
        return len(held) // SIZES[kind]
    count: int = held[1] if kind == SAME else len(held)
    return count


def extremes(pack: Packed) -> tuple[int, int]:
    """Return the lowest and the highest of one or more whole numbers.

    >>> extremes(packed((15, 17, 2))), extremes(packed((4, 4)))
    ((2, 17), (4, 4))
    """
    kind, held = pack
    if kind == SAME:
        return held[0], held[0]
    numbers = as_array(pack)
    return int(numbers.min()), int(numbers.max())
