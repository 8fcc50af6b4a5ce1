"""Mean share of the required concepts that occur in the text, in any form (0 to 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards.coverage import Coverage as Reward


class Coverage(Reward):
    """The reward of the same name, with its options, as a metric."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"lexical/coverage": mean_of(self.score(samples))}
