"""Mean positivity of the texts by VADER's lexicon (0 to 1, 0.5 is neutral)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards.sentiment import positivity


class Sentiment(Settings):
    """The reward of the same name, as a metric."""

    include_prompt: bool = False

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {
            "semantic/sentiment": mean_of([positivity(sample, self.include_prompt) for sample in samples])
        }
