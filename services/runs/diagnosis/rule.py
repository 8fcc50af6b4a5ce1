"""Rules of a diagnosis, and their findings."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from services.runs.diagnosis.history import History


@dataclass(frozen=True, slots=True)
class Evidence:
    """Numbers that made a rule fire, and a sentence with them.

    Example: `Evidence("entropy fell from 2.1 to 0.01 nats a token", {"entropy": 0.01, "entropy/early": 2.1})`
    """

    said: str
    numbers: Mapping[str, float]


class Rule(ABC):
    """A pathology of training, as a pure function of a run's history, with its reason and remedy."""

    name: ClassVar[str]  # Example: "entropy_collapses"
    title: ClassVar[str]  # name for people
    reads: ClassVar[tuple[str, ...]]  # columns that the rule needs
    shows: ClassVar[tuple[str, ...]]  # columns of its plots; the threshold belongs to the first
    threshold: ClassVar[float | None]  # drawn in the first plot; None: there is no single threshold
    reason: ClassVar[str]  # reason of the threshold

    @abstractmethod
    def find(self, seen: History) -> Evidence | None:
        """Return the evidence of the pathology, or None for a run without it."""

    @abstractmethod
    def remedy(self, seen: History) -> tuple[str, ...]:
        """Return what to set or do, the most promising remedy first, as KEY=VALUE if possible."""

    def can_judge(self, seen: History) -> bool:
        """Tell whether the run has the numbers that this rule reads."""
        return all(seen.first(key) is not None for key in self.reads)


def scaled(seen: History, key: str, factor: float, otherwise: str) -> str:
    """Return `KEY=VALUE` with the run's value times `factor`, or `otherwise` if the value is unknown.

    >>> scaled(History([], (), {"algorithm.learning_rate": 1e-3}), "algorithm.learning_rate", 0.1, "less")
    'algorithm.learning_rate=0.0001'
    """
    value = seen.settings.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value:
        return otherwise
    new = value * factor
    return f"{key}={max(1, round(new))}" if isinstance(value, int) else f"{key}={new:.3g}"
