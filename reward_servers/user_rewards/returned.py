"""Checks of a grader's return value: a number for each sample, or the values of a metric.

A mapping or a set looks like scores but is refused: iteration gives keys, or an arbitrary order.
"""

import inspect
import math
from collections.abc import AsyncIterable, Iterable, Mapping, Set
from itertools import islice
from typing import Any, SupportsFloat

from contracts.errors import RewardError
from contracts.scores import MetricValue

SHOWN = 80  # characters of the returned value in a message


class Misshapen(RewardError):
    """A return value that is wrong for any samples: a fault of the grader itself."""


def scores_of(returned: Any, num_samples: int) -> list[float | None]:
    """Return one finite number for each sample, from a list, a tuple, a one-dimensional array or an iterator.

    None stays None: the reward says nothing about that sample.

    >>> scores_of((1, 0.5, None), 3)
    [1.0, 0.5, None]

    Raises:
        Misshapen: the value is of another kind, has another length, or holds something that is no number.
        RewardError: a score is NaN or infinite.
    """
    expected = f"expected a list of {num_samples} numbers, one for each sample"
    _refuse_unawaited(returned, "score", expected)
    dimensions = getattr(returned, "shape", None)
    if dimensions is not None and len(dimensions) != 1:
        raise Misshapen(f"score() returned {_kind(returned)} of shape {tuple(dimensions)}; {expected}")
    if isinstance(returned, str | bytes | Mapping | Set) or not isinstance(returned, Iterable):
        raise Misshapen(f"score() returned {_shown(returned)}; {expected}")
    # Take one more than expected: an iterator need not end.
    scores = [
        None if score is None else _finite(score, "score()") for score in islice(returned, num_samples + 1)
    ]
    if len(scores) != num_samples:
        number = "more" if len(scores) > num_samples else str(len(scores))
        raise Misshapen(f"score() returned {number} scores for {num_samples} samples")
    return scores


def values_of(returned: Any, num_samples: int) -> dict[str, MetricValue]:
    """Return a metric's values by key, with a row for each sample or none.

    Raises:
        Misshapen: the value is of another kind, or has rows for another number of samples.
        RewardError: a number is None, NaN or infinite.
    """
    expected = "expected a mapping of keys to MetricValue"
    _refuse_unawaited(returned, "compute", expected)
    if not isinstance(returned, Mapping):
        raise Misshapen(f"compute() returned {_shown(returned)}; {expected}")
    checked = {}
    for key, value in returned.items():
        if not isinstance(key, str):
            raise Misshapen(f"compute() returned the key {_shown(key)}; expected a text")
        if not isinstance(value, MetricValue):
            raise Misshapen(f"compute() returned {_shown(value)} for '{key}'; expected a MetricValue")
        where = f"compute(), '{key}'"
        rows = None if value.rows is None else tuple(_finite(row, where) for row in value.rows)
        if rows is not None and len(rows) != num_samples:
            raise Misshapen(f"compute() returned {len(rows)} rows for '{key}', of {num_samples} samples")
        checked[key] = MetricValue(corpus=_finite(value.corpus, where), rows=rows)
    return checked


def _finite(value: Any, where: str) -> float:
    """Return the value as a float; a boolean is 0 or 1."""
    if value is None:
        raise RewardError(f"{where} returned None, which is no number")
    has_parts = tuple(getattr(value, "shape", ())) != ()
    if has_parts or isinstance(value, str | bytes) or not isinstance(value, SupportsFloat):
        raise Misshapen(f"{where} returned {_shown(value)}, which is no number")
    number = float(value)
    if not math.isfinite(number):
        raise RewardError(f"{where} returned {number}, which is no finite number")
    return number


def _refuse_unawaited(returned: Any, method: str, expected: str) -> None:
    """Refuse a coroutine or another asynchronous value."""
    if inspect.iscoroutine(returned):
        returned.close()  # or Python warns that it was never awaited
    if inspect.isawaitable(returned) or isinstance(returned, AsyncIterable):
        raise Misshapen(f"{method}() returned {_kind(returned)}, which is asynchronous; {expected}")


def _shown(value: Any) -> str:
    """Return the value's type, and as much of the value as fits a line."""
    if value is None or isinstance(value, type):
        return repr(value)
    text = " ".join(repr(value).split())
    return f"{_kind(value)} {text if len(text) <= SHOWN else text[:SHOWN] + '…'}"


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
