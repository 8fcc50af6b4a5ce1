"""Mean METEOR as RL4LMs computes it, against printed lists of references (0 to 1)."""

from typing import ClassVar

from reward_servers.metrics.mean import MeanScore
from reward_servers.rewards import meteor_rl4lms_compat


class MeteorRl4lmsCompat(meteor_rl4lms_compat.MeteorRl4lmsCompat, MeanScore):
    """The reward of the same name, with its options, as a metric."""

    key: ClassVar[str] = "lexical/meteor_rl4lms_compat"
