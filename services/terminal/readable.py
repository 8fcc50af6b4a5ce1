"""Short text for numbers, sizes and times, for the console and the report."""

import math
from typing import Any

FINEST = 6  # decimals


def number(value: Any) -> str:
    """Format a number with three significant digits; an unknown one as a dash.

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


def with_error(value: float, error: float | None, sign: str = "") -> str:
    """Format a value and its standard error, with two digits of the error.

    >>> with_error(0.61234, 0.0041), with_error(33.816, 1.26), with_error(0.5, 0.02, "+")
    ('0.6123 ± 0.0041', '33.8 ± 1.3', '+0.500 ± 0.020')
    >>> with_error(0.61234, None), with_error(48.0, 0.0), with_error(0.61234, None, "+")
    ('0.612', '48 ± 0', '+0.612')
    """
    if error is None or error < 10**-FINEST:
        shown = ("+" if sign and value > 0 else "") + number(value)
        return shown if error is None else f"{shown} ± 0"
    decimals = min(FINEST, max(0, 1 - math.floor(math.log10(error))))
    return f"{value:{sign},.{decimals}f} ± {error:,.{decimals}f}"


def size(num_bytes: float) -> str:
    """Format a number of bytes.

    >>> [size(count) for count in (96, 1_200_000, 497_774_208, 3.2e9)]
    ['96 bytes', '1.2 MB', '498 MB', '3.2 GB']
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.3g} {name}"
    return f"{num_bytes:.0f} bytes"


def duration(seconds: float) -> str:
    """Format a time.

    >>> [duration(seconds) for seconds in (0.0421, 3.214, 75, 3725)]
    ['42 ms', '3.2 s', '1 min 15 s', '1 h 2 min']
    """
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 59.5:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
