"""One reward or one metric behind its border: whatever the grader does, the answer is a score or a reason."""

import inspect
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.components import create, find
from contracts.errors import InputError, RewardError, WhetstoneError
from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.metrics import METRICS
from reward_servers.rewards import REWARDS
from reward_servers.settings import Part

logger = logging.getLogger(__name__)

# The score of one sample, or why it has none.
Answer = tuple[float | None, str | None]

BUILT_IN = {"reward": REWARDS, "metric": METRICS}
METHODS = {"reward": ("score",), "metric": ("compute",)}


def check_parts(kind: str, parts: Sequence[Part]) -> None:
    """Refuse what could never be served, before anything is started.

    A user's class is imported and its options are matched with its constructor, but it is not made:
    that may load a model, which belongs into its replica.

    Args:
        kind: "reward" or "metric".

    Raises:
        InputError: unknown name or option, or a class that does not import or lacks the method.
    """
    for part in parts:
        found = find(kind, part.name, BUILT_IN[kind])
        if issubclass(found, Settings) or not callable(getattr(found, METHODS[kind][0], None)):
            _create(kind, part)
            continue
        try:
            inspect.signature(found).bind(**part.options)
        except TypeError as error:
            raise InputError(
                f"{kind}={part.name}: {found.__name__} does not take these options: {error}"
            ) from None


def needs_references(kind: str, part: Part) -> bool:
    """Whether the component says that it compares with references."""
    return bool(getattr(find(kind, part.name, BUILT_IN[kind]), "needs_references", False))


class RewardServer:
    """Scores samples with one reward, and keeps a bad sample from spoiling the others of its batch.

    Example: `RewardServer(Part(name="length")).score([Sample(text="a b c")]) == [(3.0, None)]`
    """

    def __init__(self, part: Part) -> None:
        self._label = part.label
        self._grader = _create("reward", part)

    def score(self, samples: Sequence[Sample]) -> list[Answer]:
        """An answer a sample, in order. Never raises for what the grader does."""
        if not samples:
            return []
        try:
            return [(score, None) for score in self._scores(samples)]
        except Exception as error:  # a grader may raise anything
            if len(samples) == 1:
                return [(None, f"reward {self._label}: {_reason(error)}; {_excerpt(samples[0])}")]
            logger.warning(
                "reward %s: a batch of %d failed (%s); its samples are scored one by one",
                self._label,
                len(samples),
                _reason(error),
            )
        return [answer for sample in samples for answer in self.score([sample])]

    def _scores(self, samples: Sequence[Sample]) -> list[float]:
        scores = [_finite(score) for score in self._grader.score(list(samples))]
        if len(scores) != len(samples):
            raise RewardError(f"returned {len(scores)} scores for {len(samples)} samples")
        return scores


class MetricServer:
    """Computes one metric over a corpus.

    Example: `MetricServer(Part(name="length")).compute([Sample(text="a b c")])
    == {"length/mean_words": MetricValue(corpus=3.0, rows=(3.0,))}`
    """

    def __init__(self, part: Part) -> None:
        self._label = part.label
        self._metric = _create("metric", part)

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        """Each key's value over all samples.

        Raises:
            RewardError: there are no samples, or the metric raised or returned something that is no value.
        """
        if not samples:
            raise RewardError(f"metric {self._label}: there are no samples to compute it over")
        try:
            return _checked(self._metric.compute(list(samples)), len(samples))
        except Exception as error:  # a metric may raise anything
            raise RewardError(f"metric {self._label}: {_reason(error)}") from error


def _create(kind: str, part: Part) -> Any:
    return create(kind, part.name, part.options, BUILT_IN[kind], METHODS[kind])


def _finite(value: Any) -> float:
    """The value as a float; NaN, infinity and text are no scores."""
    if isinstance(value, str | bytes):
        raise RewardError(f"returned {value!r}, which is no number")
    number = float(value)
    if not math.isfinite(number):
        raise RewardError(f"returned {number}, which is no finite number")
    return number


def _checked(values: Mapping[str, MetricValue], num_samples: int) -> dict[str, MetricValue]:
    checked = {}
    for key, value in values.items():
        if not isinstance(value, MetricValue):
            raise RewardError(f"returned {value!r} for '{key}'; expected a MetricValue")
        rows = None if value.rows is None else tuple(_finite(row) for row in value.rows)
        if rows is not None and len(rows) != num_samples:
            raise RewardError(f"returned {len(rows)} rows for '{key}', of {num_samples} samples")
        checked[key] = MetricValue(corpus=_finite(value.corpus), rows=rows)
    return checked


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, WhetstoneError) else f"{type(error).__name__}: {error}"


def _excerpt(sample: Sample, limit: int = 200) -> str:
    text = sample.text if len(sample.text) <= limit else sample.text[:limit] + "…"
    return f"the sample: {text!r}"
