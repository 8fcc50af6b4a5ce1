"""The corpus value of most metrics: the mean over the samples."""

from collections.abc import Sequence
from statistics import fmean

from contracts.scores import MetricValue


def mean_of(rows: Sequence[float]) -> MetricValue:
    """The mean, with the rows it comes from; at least one row.

    >>> mean_of([0.0, 1.0])
    MetricValue(corpus=0.5, rows=(0.0, 1.0))
    """
    return MetricValue(corpus=fmean(rows), rows=tuple(rows))
