"""Number of words in the text or, with a target, its closeness to that target (0 to 1)."""

from collections.abc import Sequence

from pydantic import Field

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.graders.grader import mean_of
from reward_servers.text.scripts import spaced


class Length(Settings):
    """The number of words between blanks; in scripts without blanks each character is a word."""

    target: int | None = Field(default=None, ge=1)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        counts = [num_words(sample.text) for sample in samples]
        if self.target is None:
            return [float(count) for count in counts]
        return [closeness(count, self.target) for count in counts]

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        key = "length/mean_words" if self.target is None else "length/closeness_to_target"
        return {key: mean_of(self.score(samples))}


def num_words(text: str) -> int:
    return len(spaced(text).split())


def closeness(count: int, target: int) -> float:
    """Return 1 at the target, falling linearly to 0 at no words and at twice the target.

    >>> [closeness(count, target=10) for count in (0, 5, 10, 15, 40)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    return max(0.0, 1.0 - abs(count - target) / target)
