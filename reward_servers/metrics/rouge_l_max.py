"""Mean ROUGE-L F of the texts against their best references, as ROUGE-1.5.5 computes it (0 to 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards.rouge_l_max import RougeLMax as Reward


class RougeLMax(Reward):
    """The reward of the same name, with its options, as a metric."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"lexical/rouge_l_max": mean_of(self.score(samples))}
