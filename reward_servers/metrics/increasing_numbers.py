"""Mean share of the text that is one strictly increasing run of numbers (0 to 1)."""

from collections.abc import Sequence

from pydantic import Field

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards.increasing_numbers import increasing_fraction


class IncreasingNumbers(Settings):
    """The reward of the same name, as a metric."""

    min_tokens: int = Field(default=20, ge=0)

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        rows = [increasing_fraction(sample.text, self.min_tokens) for sample in samples]
        return {"synthetic/increasing_numbers_in_text": mean_of(rows)}
