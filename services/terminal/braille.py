"""Curves drawn with Braille characters: each has 2 × 4 dots, finer than a terminal's cells."""

import math
from collections.abc import Sequence
from itertools import pairwise

BLANK = 0x2800
# The bit of each dot in a Braille character: rows from the top, columns from the left (Unicode, ch. 21.1).
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def draw_curve(values: Sequence[float], width: int, height: int) -> list[str]:
    """Draw `values` as a line over the full width, lowest value at the bottom, highest at the top.

    If values exceed dots, neighbouring values are averaged. NaN leaves a gap.

    Args:
        values: at least one.
        width, height: in characters.

    Returns:
        `height` strings of `width` characters, top first.

    >>> for line in draw_curve([0, 1, 2, 3], width=2, height=1): print(line)
    ⡠⠊
    """
    columns = _averaged(values, 2 * width)
    finite = [value for value in columns if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    is_level = high - low <= 1e-9 * max(abs(low), abs(high))  # else the curve would show rounding errors
    dots_high = 4 * height
    grid = [[BLANK] * width for _ in range(height)]
    before: int | None = None
    for x, value in enumerate(_stretched(columns, 2 * width)):
        if not math.isfinite(value):
            before = None
            continue
        share = 0.5 if is_level else (value - low) / (high - low)
        y = round((1 - share) * (dots_high - 1))
        for dot in _between(before, y):
            grid[dot // 4][x // 2] |= DOTS[dot % 4][x % 2]
        before = y
    return ["".join(map(chr, row)) for row in grid]


def _averaged(values: Sequence[float], most: int) -> list[float]:
    """Return at most `most` means of neighbouring values."""
    if len(values) <= most:
        return list(values)
    edges = [round(i * len(values) / most) for i in range(most + 1)]
    bins = [values[a:b] for a, b in pairwise(edges)]
    finite = [[value for value in bin_ if math.isfinite(value)] for bin_ in bins]
    return [sum(bin_) / len(bin_) if bin_ else math.nan for bin_ in finite]


def _stretched(values: Sequence[float], length: int) -> list[float]:
    """Interpolate the values linearly to `length` values."""
    if len(values) == 1 or length == 1:
        return list(values) * (length if len(values) == 1 else 1)
    step = (len(values) - 1) / (length - 1)
    places = [min(i * step, len(values) - 1 - 1e-9) for i in range(length)]
    return [values[int(p)] + (p - int(p)) * (values[int(p) + 1] - values[int(p)]) for p in places]


def _between(before: int | None, y: int) -> range:
    """Return the dots that join a column to the previous one, without the previous column's dot."""
    if before is None or abs(y - before) <= 1:
        return range(y, y + 1)
    return range(before + 1, y + 1) if y > before else range(y, before)
