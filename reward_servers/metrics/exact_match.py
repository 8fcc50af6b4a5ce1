"""Share of the texts that equal one of their references."""

from typing import ClassVar

from reward_servers.metrics.mean import MeanScore
from reward_servers.rewards import exact_match


class ExactMatch(exact_match.ExactMatch, MeanScore):
    """The reward of the same name, with its options, as a metric."""

    key: ClassVar[str] = "lexical/exact_match"
