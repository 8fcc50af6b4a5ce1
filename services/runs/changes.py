"""Change of a metric between two evaluations of one split, with its standard error.

    rows of both evaluations ─▶ each prompt's values, before and after ─▶ difference ± standard error

Both evaluations usually have the same prompts. An easy prompt is easy in both, so the difference has a
smaller error than the two means suggest. So prompts are compared in pairs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.rollout import PART
from services.runs.folder import RunFolder
from services.runs.part_names import split_name
from services.runs.standard_errors import (
    Change,
    error_key,
    standard_error,
    standard_error_of_change,
    unpaired,
)
from services.terminal.readable import with_error

REWARD, MEAN = "reward/mean", "/mean"
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Observed:
    """Metric of one evaluation: its value, and the texts' values if it is their mean.

    Example: `Observed(0.5, 0.1, (0.4, 0.6), (("imdb/test/0", "It"), ("imdb/test/1", "A")))`
    """

    value: float
    standard_error: float | None  # the evaluation's standard error
    texts: tuple[float, ...] = ()
    prompts: tuple[tuple[str, str], ...] = ()  # id and text of each text's prompt


def change_in(folder: RunFolder, split: str, metric: str, until: int | None = None) -> Change | None:
    """Return a metric's change from the first evaluation to the last; None if one of them lacks it.

    Args:
        until: last iteration whose evaluation counts; None: all count.
    """
    evaluations, epochs = folder.evaluations(split), folder.prediction_epochs(split)
    evaluations = [row for row in evaluations if until is None or row["epoch"] <= until]
    ends = [row for row in (evaluations[:1] + evaluations[1:][-1:]) if row["metrics"].get(metric) is not None]
    if len(ends) < 2:
        return None
    rows = [folder.whole_predictions(row["epoch"], split) if row["epoch"] in epochs else () for row in ends]
    before, after = (
        observed(metric, end["metrics"], predictions) for end, predictions in zip(ends, rows, strict=True)
    )
    return change(before, after)


def observed(metric: str, metrics: Row, rows: Sequence[Row]) -> Observed:
    """Collect a metric's value and its texts' values from an evaluation's `metrics` and prediction `rows`."""
    value, error = metrics[metric], metrics.get(error_key(metric))
    if split := split_name(metric):
        part, metric = split
        rows = [row for row in rows if row.get(PART) == part]
    for key in (metric, metric.removesuffix(MEAN)):
        known = [row for row in rows if _is_number(row.get(key))]
        texts = tuple(float(row[key]) for row in known)
        # Only if the metric is the mean of its texts; corpus BLEU, for example, is not.
        if texts and math.isclose(math.fsum(texts) / len(texts), value, rel_tol=1e-6, abs_tol=1e-9):
            prompts = tuple((str(row.get("sample_id", "")), str(row.get("prompt_text", ""))) for row in known)
            return Observed(value, error, texts, prompts)
    return Observed(value, error)


def error_of(metric: str, metrics: Row, rows: Sequence[Row]) -> float | None:
    """Return a metric's standard error from the evaluation or from its texts; None if it is unknown."""
    if not _is_number(metrics.get(metric)):
        return None
    observation = observed(metric, metrics, rows)
    if observation.standard_error is not None:
        return observation.standard_error
    return standard_error(observation.texts, observation.prompts)


def change(before: Observed, after: Observed) -> Change:
    """Return the difference and its error, paired by prompt if possible, else from both standard errors."""
    if before.texts and after.texts:
        error = standard_error_of_change(before.texts, before.prompts, after.texts, after.prompts)
    else:
        error = unpaired(before.standard_error, after.standard_error)
    return Change(after.value - before.value, error)


def in_words(change: Change) -> str:
    """Describe a change in words.

    >>> in_words(Change(0.33, 0.02)), in_words(Change(0.00035, 0.029)), in_words(Change(0.33, None))
    ('+0.330 ± 0.020', '+0.000 ± 0.029, no clear change', '+0.33, error not known')
    """
    words = with_error(change.difference, change.standard_error, "+")
    if change.standard_error is None:
        return f"{words}, error not known"
    return words if change.direction else f"{words}, no clear change"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
