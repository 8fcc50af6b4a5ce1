"""Evaluations of groups of runs: each metric with its error, and its difference from the first group.

one run a group    differences of the same prompts in pairs, and their standard error over prompts
several seeds      differences of the seeds' means, and their standard error over seeds
one beside several both errors together; the spread that seeds of the one would have is not in it
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

from services.comparison.groups import Group
from services.loop.evaluations.baselines import BASELINE
from services.runs.changes import Observed, error_of, observed
from services.runs.standard_errors import CLEAR, is_error, standard_error_of_change, unpaired

CERTAIN = 0.95  # probability that a difference of nothing is not called clear, over seeds


@dataclass(frozen=True, slots=True)
class LastEvaluation:
    """The last evaluation of a run: its metrics, and a row for each text."""

    epoch: int
    metrics: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of a group's metric from the first group's. It is clear beyond `limit` standard errors."""

    value: float
    error: float | None
    limit: float = CLEAR

    @property
    def direction(self) -> Literal[-1, 0, 1]:
        if self.error is None or not abs(self.value) > self.limit * self.error:
            return 0
        return 1 if self.value > 0 else -1


@dataclass(frozen=True, slots=True)
class Cell:
    """A group's value of a metric, its standard error, and the difference from the first group's."""

    value: float
    error: float | None
    difference: Difference | None = None


@dataclass(frozen=True, slots=True)
class DifferenceTable:
    """A row for each metric, a cell for each group; None where a group lacks the metric."""

    split: str
    epochs: tuple[str, ...]  # of each group's last evaluations
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]


def last_evaluations(group: Group, split: str) -> list[LastEvaluation]:
    """Return the last evaluation of each run that has one."""
    found = []
    for run in group.runs:
        lines = run.folder.evaluations(split)
        if lines:
            epoch = lines[-1]["epoch"]
            has_rows = epoch in run.folder.prediction_epochs(split)
            rows = run.folder.whole_predictions(epoch, split) if has_rows else ()
            found.append(LastEvaluation(epoch, lines[-1]["metrics"], rows))
    return found


def difference_table(split: str, groups: Sequence[Sequence[LastEvaluation]]) -> DifferenceTable | None:
    """Return the table of a split from each group's last evaluations; None where no group has any."""
    names = dict.fromkeys(name for own in groups for one in own for name in one.metrics)
    metrics = [name for name in names if not is_error(name) and not name.startswith(f"{BASELINE}/")]
    rows = []
    for metric in metrics:
        known = [[one for one in own if _is_known(one, metric)] for own in groups]
        cells = [cell_of(metric, own, known[0]) if own else None for own in known]
        rows.append((metric, (_alone(cells[0]), *cells[1:])))
    epochs = (", ".join(str(epoch) for epoch in sorted({one.epoch for one in own})) for own in groups)
    return DifferenceTable(split, tuple(epochs), tuple(rows)) if rows else None


def cell_of(metric: str, own: Sequence[LastEvaluation], base: Sequence[LastEvaluation]) -> Cell:
    """Return a group's value and error, and its difference from `base` if that has the metric."""
    value, error = _mean(metric, own)
    return Cell(value, error, difference(metric, base, own) if base else None)


def difference(metric: str, before: Sequence[LastEvaluation], after: Sequence[LastEvaluation]) -> Difference:
    """Return after - before: over seeds where both have several, over prompts where both have one run.

    Over seeds it is clear by Welch's t-test (Welch 1947, Biometrika 34, 28-35). With one run beside several,
    the error is that over prompts and that over the several seeds together.
    """
    (first, first_error), (second, second_error) = _mean(metric, before), _mean(metric, after)
    error = unpaired(first_error, second_error)
    if min(len(before), len(after)) > 1:
        return Difference(second - first, error, welch_limit(_values(metric, before), _values(metric, after)))
    sides = [[observed(metric, one.metrics, one.rows) for one in side] for side in (before, after)]
    seeds, num_seeds = (first_error, len(before)) if len(before) > 1 else (second_error, len(after))
    if all(found.texts for side in sides for found in side):
        error = standard_error_of_change(*_pooled(sides[0]), *_pooled(sides[1]))
        error = error if num_seeds == 1 else unpaired(error, seeds)
    if num_seeds == 1 or not seeds or error is None:
        return Difference(second - first, error)
    # The share of the seeds in the squared error has few degrees of freedom (Welch and Satterthwaite).
    return Difference(second - first, error, limit_at((num_seeds - 1) * (error / seeds) ** 4))


def welch_limit(before: Sequence[float], after: Sequence[float]) -> float:
    """Return how many standard errors a difference of two means has to exceed, by Welch's t-test.

    >>> round(welch_limit([0.1, 0.2, 0.3], [0.4, 0.5, 0.6]), 2)  # four degrees of freedom
    2.78
    """
    return limit_at(welch_freedom(before, after))


def limit_at(freedom: float) -> float:
    """Return how many standard errors are clear by a t-test with so many degrees of freedom.

    >>> round(limit_at(1), 2), round(limit_at(1e9), 2)
    (12.71, 1.96)
    """
    from scipy.stats import t

    return float(t.ppf((1 + CERTAIN) / 2, freedom))


def welch_freedom(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the degrees of freedom of Welch's t-test.

    >>> round(welch_freedom([0.1, 0.2, 0.3], [0.4, 0.5, 0.6]), 2)
    4.0
    """
    shares = [stdev(values) ** 2 / len(values) for values in (before, after)]
    spread = [share**2 / (len(values) - 1) for share, values in zip(shares, (before, after), strict=True)]
    return sum(shares) ** 2 / math.fsum(spread) if any(spread) else min(len(before), len(after)) - 1


def _mean(metric: str, own: Sequence[LastEvaluation]) -> tuple[float, float | None]:
    values = _values(metric, own)
    if len(values) > 1:
        return fmean(values), stdev(values) / math.sqrt(len(values))
    return values[0], error_of(metric, own[0].metrics, own[0].rows)


def _values(metric: str, own: Sequence[LastEvaluation]) -> list[float]:
    return [float(one.metrics[metric]) for one in own]


def _pooled(side: Sequence[Observed]) -> tuple[list[float], list[tuple[str, str]]]:
    """Return the texts of all runs of a side, and their prompts."""
    texts = [text for found in side for text in found.texts]
    return texts, [prompt for found in side for prompt in found.prompts]


def _alone(cell: Cell | None) -> Cell | None:
    """Return the first group's cell, which differs from nothing."""
    return cell and Cell(cell.value, cell.error)


def _is_known(one: LastEvaluation, metric: str) -> bool:
    value = one.metrics.get(metric)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
