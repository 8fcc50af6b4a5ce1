"""Mean SummaC zero-shot consistency of summaries with their documents (-1 to 1), by an inference model."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards import summac_zs


class SummacZs(summac_zs.SummacZs):
    """The reward `summac_zs`, as a metric."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"consistency/summaczs": mean_of(self.score(samples))}
