"""Mean value that a sequence classifier gives to prompts and texts."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards import learned_reward


class LearnedReward(learned_reward.LearnedReward):
    """The reward of the same name, as a metric."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"semantic/learned_automodel_metric": mean_of(self.score(samples))}
