"""Share of the texts that equal one of their references."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards.exact_match import ExactMatch as Reward


class ExactMatch(Reward):
    """The reward of the same name, with its options, as a metric."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"lexical/exact_match": mean_of(self.score(samples))}
