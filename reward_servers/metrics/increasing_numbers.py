"""Mean share of the text that is one strictly increasing run of numbers (0 to 1)."""

from typing import ClassVar

from reward_servers.metrics.mean import MeanScore
from reward_servers.rewards import increasing_numbers


class IncreasingNumbers(increasing_numbers.IncreasingNumbers, MeanScore):
    """The reward of the same name, as a metric."""

    key: ClassVar[str] = "synthetic/increasing_numbers_in_text"
