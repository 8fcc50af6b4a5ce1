"""Mean BLEURT of the texts against their references, by a checkpoint converted to transformers."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards import bleurt


class Bleurt(bleurt.Bleurt):
    """The reward of the same name, as a metric."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"semantic/bleurt": mean_of(self.score(samples))}
