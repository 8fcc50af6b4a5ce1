"""Share of the answers in which a classifier finds the intent that the meta data asks for (0 to 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards import intent_accuracy


class IntentAccuracy(intent_accuracy.IntentAccuracy):
    """The reward of the same name, as a metric."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"intent/accuracy": mean_of(self.score(samples))}
