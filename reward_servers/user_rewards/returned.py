"""Check a grader's return value: a score for each sample, or a metric's values.

A mapping or a set looks like scores but is refused, because iteration yields keys or an arbitrary order.
"""

import inspect
from collections.abc import AsyncIterable, Iterable, Mapping, Set
from itertools import islice
from typing import Any

from contracts.scores import Grade, MetricValue
from reward_servers.user_rewards.grades import Misshapen, finite, grade_of, kind, shown


def scores_of(returned: Any, num_samples: int) -> list[float | Grade | None]:
    """Return one score for each sample, from a list, a tuple, a one-dimensional array or an iterator.

    A plain number is a float, anything more a grade (`grades.py`). None stays None and means no score.

    >>> scores_of((1, 0.5, None), 3)
    [1.0, 0.5, None]

    Raises:
        Misshapen: the value has another kind or length, or holds a non-number.
        RewardError: a score is NaN or infinite.
    """
    expected = f"expected a list of {num_samples} numbers, one for each sample"
    _refuse_unawaited(returned, "score", expected)
    dimensions = getattr(returned, "shape", None)
    if dimensions is not None and len(dimensions) != 1:
        raise Misshapen(f"score() returned {kind(returned)} of shape {tuple(dimensions)}; {expected}")
    if isinstance(returned, str | bytes | Mapping | Set) or not isinstance(returned, Iterable):
        raise Misshapen(f"score() returned {shown(returned)}; {expected}")
    # Take one more than expected, because an iterator need not end.
    scores = [grade_of(score, "score()") for score in islice(returned, num_samples + 1)]
    if len(scores) != num_samples:
        number = "more" if len(scores) > num_samples else str(len(scores))
        raise Misshapen(f"score() returned {number} scores for {num_samples} samples")
    return scores


def values_of(returned: Any, num_samples: int) -> dict[str, MetricValue]:
    """Return a metric's values by key, with a row for each sample or none.

    Raises:
        Misshapen: the value has another kind, or rows for another number of samples.
        RewardError: a number is None, NaN or infinite.
    """
    expected = "expected a mapping of keys to MetricValue"
    _refuse_unawaited(returned, "compute", expected)
    if not isinstance(returned, Mapping):
        raise Misshapen(f"compute() returned {shown(returned)}; {expected}")
    checked = {}
    for key, value in returned.items():
        if not isinstance(key, str):
            raise Misshapen(f"compute() returned the key {shown(key)}; expected a text")
        if not isinstance(value, MetricValue):
            raise Misshapen(f"compute() returned {shown(value)} for '{key}'; expected a MetricValue")
        where = f"compute(), '{key}'"
        rows = None if value.rows is None else tuple(finite(row, where) for row in value.rows)
        if rows is not None and len(rows) != num_samples:
            raise Misshapen(f"compute() returned {len(rows)} rows for '{key}', of {num_samples} samples")
        checked[key] = MetricValue(corpus=finite(value.corpus, where), rows=rows)
    return checked


def _refuse_unawaited(returned: Any, method: str, expected: str) -> None:
    """Refuse a coroutine or another asynchronous value."""
    if inspect.iscoroutine(returned):
        returned.close()  # or Python warns that it was never awaited
    if inspect.isawaitable(returned) or isinstance(returned, AsyncIterable):
        raise Misshapen(f"{method}() returned {kind(returned)}, which is asynchronous; {expected}")
