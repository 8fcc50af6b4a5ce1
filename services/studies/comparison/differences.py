"""Compare groups' evaluations: each metric with its error, and its difference from the first group.

one run a group    differences of the same prompts in pairs, and their standard error over prompts
several seeds      differences of the seeds' means, and their standard error over seeds
one beside several both errors together, without the unknown spread over the single run's seeds
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

from services.runs.changes import Observed, error_of, observed
from services.runs.player_metrics import BASELINE
from services.runs.standard_errors import CLEAR, is_error, standard_error_of_change, unpaired
from services.studies.comparison.groups import Group

CERTAIN = 0.95  # probability that no difference is called clear by chance, over seeds


@dataclass(frozen=True, slots=True)
class LastEvaluation:
    """A run's last evaluation: its metrics, and a row for each text."""

    epoch: int
    metrics: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of a group's metric from the first group's, clear beyond `limit` standard errors."""

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
    """A row for each metric, a cell for each group; None if a group lacks the metric."""

    split: str
    epochs: tuple[str, ...]  # epochs of each group's last evaluations
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]


def last_evaluations(group: Group, split: str) -> list[LastEvaluation]:
    """Return each evaluated run's last evaluation."""
    evaluations = []
    for run in group.runs:
        lines = run.folder.evaluations(split)
        if lines:
            epoch = lines[-1]["epoch"]
            has_rows = epoch in run.folder.prediction_epochs(split)
            rows = run.folder.whole_predictions(epoch, split) if has_rows else ()
            evaluations.append(LastEvaluation(epoch, lines[-1]["metrics"], rows))
    return evaluations


def difference_table(split: str, groups: Sequence[Sequence[LastEvaluation]]) -> DifferenceTable | None:
    """Return a split's table from each group's last evaluations; None without evaluations."""
    names = dict.fromkeys(
        name for evaluations in groups for evaluation in evaluations for name in evaluation.metrics
    )
    metrics = [name for name in names if not is_error(name) and not name.startswith(f"{BASELINE}/")]
    rows = []
    for metric in metrics:
        known = [
            [evaluation for evaluation in evaluations if _is_known(evaluation, metric)]
            for evaluations in groups
        ]
        cells = [cell_of(metric, evaluations, known[0]) if evaluations else None for evaluations in known]
        rows.append((metric, (_alone(cells[0]), *cells[1:])))
    epochs = (
        ", ".join(str(epoch) for epoch in sorted({evaluation.epoch for evaluation in evaluations}))
        for evaluations in groups
    )
    return DifferenceTable(split, tuple(epochs), tuple(rows)) if rows else None


def cell_of(metric: str, evaluations: Sequence[LastEvaluation], base: Sequence[LastEvaluation]) -> Cell:
    """Return a group's value and error, and its difference from `base` if that has the metric."""
    value, error = _mean(metric, evaluations)
    return Cell(value, error, difference(metric, base, evaluations) if base else None)


def difference(metric: str, before: Sequence[LastEvaluation], after: Sequence[LastEvaluation]) -> Difference:
    """Return after - before, over seeds if both have several, over prompts if both have one run.

    Over seeds, Welch's t-test decides (Welch 1947, Biometrika 34, 28-35). With one run beside several, the
    errors over prompts and over seeds add up.
    """
    (first, first_error), (second, second_error) = _mean(metric, before), _mean(metric, after)
    error = unpaired(first_error, second_error)
    if min(len(before), len(after)) > 1:
        return Difference(second - first, error, welch_limit(_values(metric, before), _values(metric, after)))
    sides = [
        [observed(metric, evaluation.metrics, evaluation.rows) for evaluation in side]
        for side in (before, after)
    ]
    seeds, num_seeds = (first_error, len(before)) if len(before) > 1 else (second_error, len(after))
    if all(measured.texts for side in sides for measured in side):
        error = standard_error_of_change(*_pooled(sides[0]), *_pooled(sides[1]))
        error = error if num_seeds == 1 else unpaired(error, seeds)
    if num_seeds == 1 or not seeds or error is None:
        return Difference(second - first, error)
    # The share of the seeds in the squared error has few degrees of freedom (Welch and Satterthwaite).
    return Difference(second - first, error, limit_at((num_seeds - 1) * (error / seeds) ** 4))


def welch_limit(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the limit of Welch's t-test for two means, in standard errors.

    >>> round(welch_limit([0.1, 0.2, 0.3], [0.4, 0.5, 0.6]), 2)  # four degrees of freedom
    2.78
    """
    return limit_at(welch_freedom(before, after))


def limit_at(freedom: float) -> float:
    """Return a t-test's limit in standard errors for these degrees of freedom.

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


def _mean(metric: str, evaluations: Sequence[LastEvaluation]) -> tuple[float, float | None]:
    values = _values(metric, evaluations)
    if len(values) > 1:
        return fmean(values), stdev(values) / math.sqrt(len(values))
    return values[0], error_of(metric, evaluations[0].metrics, evaluations[0].rows)


def _values(metric: str, evaluations: Sequence[LastEvaluation]) -> list[float]:
    return [float(evaluation.metrics[metric]) for evaluation in evaluations]


def _pooled(side: Sequence[Observed]) -> tuple[list[float], list[tuple[str, str]]]:
    """Return the texts of all a side's runs, and their prompts."""
    texts = [text for measured in side for text in measured.texts]
    return texts, [prompt for measured in side for prompt in measured.prompts]


def _alone(cell: Cell | None) -> Cell | None:
    """Return the first group's cell, which has no difference."""
    return cell and Cell(cell.value, cell.error)


def _is_known(one: LastEvaluation, metric: str) -> bool:
    value = one.metrics.get(metric)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
