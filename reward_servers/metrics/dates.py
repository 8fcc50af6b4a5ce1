"""Share of the texts that hold a date such as 2024-01-31 (0 to 1)."""

from typing import ClassVar

from reward_servers.metrics.mean import MeanScore
from reward_servers.rewards import dates


class Dates(dates.Dates, MeanScore):
    """The reward of the same name, as a metric."""

    key: ClassVar[str] = "synthetic/dates_in_text"
