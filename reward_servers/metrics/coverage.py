"""Mean share of the required concepts that occur in the text, in any form (0 to 1)."""

from typing import ClassVar

from reward_servers.metrics.mean import MeanScore
from reward_servers.rewards import coverage


class Coverage(coverage.Coverage, MeanScore):
    """The reward of the same name, with its options, as a metric."""

    key: ClassVar[str] = "lexical/coverage"
