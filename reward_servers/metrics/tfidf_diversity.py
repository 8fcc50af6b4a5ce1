"""Mean tf-idf weight of the words of the texts, less for very short ones (0 to 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards.tfidf_diversity import TfidfDiversity as Reward


class TfidfDiversity(Reward):
    """The reward of the same name, with its options, as a metric."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"diversity_metrics/tfidf": mean_of(self.score(samples))}
