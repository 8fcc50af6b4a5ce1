"""Mean number of words in a text."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards.length import num_words


class Length(Settings):
    """The number of words between blanks."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"length/mean_words": mean_of([float(num_words(sample.text)) for sample in samples])}
