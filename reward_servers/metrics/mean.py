"""The mean over the samples, which is the corpus value of most metrics."""

from collections.abc import Sequence
from statistics import fmean

from contracts.scores import MetricValue


def mean_of(rows: Sequence[float]) -> MetricValue:
    """Return the mean with its rows, of which there must be at least one.

    >>> mean_of([0.0, 1.0])
    MetricValue(corpus=0.5, rows=(0.0, 1.0))
    """
    return MetricValue(corpus=fmean(rows), rows=tuple(rows))
