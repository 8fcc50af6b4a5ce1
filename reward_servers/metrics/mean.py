"""The mean over the samples, which is the corpus value of most metrics."""

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings


class MeanScore(Settings):
    """Base of a metric that is the mean of a reward, named second: `class Meteor(Reward, MeanScore)`."""

    key: ClassVar[str]  # the value's name in the results

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
