"""Mean METEOR of the texts against their best references (0 to 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards.meteor import Meteor as Reward


class Meteor(Reward):
    """The reward of the same name, with its options, as a metric."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"lexical/meteor": mean_of(self.score(samples))}
