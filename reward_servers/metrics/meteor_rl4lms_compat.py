"""Mean METEOR as RL4LMs computes it, against printed lists of references (0 to 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards.meteor_rl4lms_compat import MeteorRl4lmsCompat as Reward


class MeteorRl4lmsCompat(Reward):
    """The reward of the same name, with its options, as a metric."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"lexical/meteor_rl4lms_compat": mean_of(self.score(samples))}
