"""Choice of the best checkpoint by a metric of the validation split."""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from contracts.errors import InputError, did_you_mean
from services.runs.standard_errors import less_is_better

SPLIT = "val/"


@dataclass(frozen=True, slots=True)
class Criterion:
    """Metric of `keep_best`, and whether larger or smaller is better.

    >>> Criterion.of("min:val/fluency_metrics/perplexity")
    Criterion(key='fluency_metrics/perplexity', better='min')
    >>> Criterion.of("val/reward/mean").better, Criterion.of("val/loss").better
    ('max', 'min')
    """

    key: str  # name of the metric in evaluations
    better: Literal["max", "min"] = "max"

    @classmethod
    def of(cls, text: str) -> "Criterion":
        """Parse the value of `keep_best`.

        Raises:
            ValueError: `text` is not a metric of the validation split.
        """
        better, _, metric = text.partition(":") if text[:4] in ("min:", "max:") else ("", "", text)
        if not metric.startswith(SPLIT) or metric == SPLIT:
            raise ValueError(
                f"got {text!r}; expected a metric of the validation split, such as val/reward/mean, or "
                "min:val/KEY if less is better (a model chosen by the test split can't be tested on it)"
            )
        is_less = better == "min" or (not better and less_is_better(metric))
        return cls(metric.removeprefix(SPLIT), "min" if is_less else "max")

    def check(self, metrics: Mapping[str, Any]) -> None:
        """Check that evaluations measure the metric.

        Raises:
            InputError: the evaluations don't measure the metric.
        """
        if self.key not in metrics:
            raise InputError(
                f"keep_best: no metric {self.key!r} in evaluations{did_you_mean(self.key, metrics)}"
            )


@dataclass(frozen=True, slots=True)
class Best:
    """The best iteration and its metric. Example: `Best(iteration=40, value=0.61)`"""

    iteration: int
    value: float


def best_of(
    criterion: Criterion, evaluations: Sequence[Mapping[str, Any]], among: Container[int] | None = None
) -> Best | None:
    """Return the best evaluation, the first among equals, without the untrained model.

    Args:
        among: iterations to choose from; None: all.

    >>> rows = [{"epoch": 0, "metrics": {"r": 9.0}}, {"epoch": 2, "metrics": {"r": 0.5}}]
    >>> best_of(Criterion("r"), [*rows, {"epoch": 4, "metrics": {"r": 0.4}}])
    Best(iteration=2, value=0.5)
    """
    sign = -1.0 if criterion.better == "min" else 1.0
    candidates = [
        Best(row["epoch"], value)
        for row in evaluations
        if row["epoch"] > 0 and (among is None or row["epoch"] in among)
        if isinstance(value := row["metrics"].get(criterion.key), int | float) and math.isfinite(value)
    ]
    return max(candidates, key=lambda best: (sign * best.value, -best.iteration), default=None)
