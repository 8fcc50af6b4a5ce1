"""Share of the texts that hold a date such as 2024-01-31 (0 to 1)."""

from collections.abc import Sequence

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.metrics.mean import mean_of
from reward_servers.rewards.dates import has_date


class Dates(Settings):
    """The reward of the same name, as a metric."""

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        return {"synthetic/dates_in_text": mean_of([has_date(sample.text) for sample in samples])}
