"""Numbers and times in few letters, for the console and the report."""

import math
from typing import Any


def number(value: Any) -> str:
    """Three digits that matter; a dash for what is not known.

    >>> [number(value) for value in (0.61803, 5123.4, 48.0, -0.00012, 1234567, None, float("nan"), "n/a")]
    ['0.618', '5,123', '48', '-0.00012', '1.23M', '–', '–', 'n/a']
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if not isinstance(value, int | float):
        return str(value)
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g}M"
    return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """
    >>> [duration(seconds) for seconds in (0.0421, 3.214, 75, 3725)]
    ['42 ms', '3.2 s', '1 min 15 s', '1 h 2 min']
    """
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 59.5:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
