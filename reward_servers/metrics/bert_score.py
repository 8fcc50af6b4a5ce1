"""Mean BERTScore F1 of the texts against their best references (0 to 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards import bert_score


class BertScore(bert_score.BertScore):
    """The reward of the same name, as a metric."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"semantic/bert_score": mean_of(self.score(samples))}
