"""Mean value that a sequence classifier gives to prompts and texts."""

from typing import ClassVar

from reward_servers.metrics.mean import MeanScore
from reward_servers.rewards import learned_reward


class LearnedReward(learned_reward.LearnedReward, MeanScore):
    """The reward of the same name, as a metric."""

    key: ClassVar[str] = "semantic/learned_automodel_metric"
