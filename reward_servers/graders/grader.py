"""The base of graders: texts have scores, and a split of texts has their mean, or values of its own."""

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings


class Grader(Settings):
    """A reward that is a metric, too: `score` judges each text, and `compute` a whole split.

    Example: `Dates().compute([Sample("on 2024-01-31")])
    == {"synthetic/dates_in_text": MetricValue(corpus=1.0, rows=(1.0,))}`
    """

    key: ClassVar[str]  # the name of the mean in the results

    def score(self, samples: Sequence[Sample]) -> list[float]:
        raise NotImplementedError

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {self.key: mean_of(self.score(samples))}


def mean_of(rows: Sequence[float]) -> MetricValue:
    """Return the mean with its rows, of which there must be at least one.

    >>> mean_of([0.0, 1.0])
    MetricValue(corpus=0.5, rows=(0.0, 1.0))
    """
    return MetricValue(corpus=fmean(rows), rows=tuple(rows))
