"""Mean BLEURT of the texts against their references, by a checkpoint converted to transformers."""

from typing import ClassVar

from reward_servers.metrics.mean import MeanScore
from reward_servers.rewards import bleurt


class Bleurt(bleurt.Bleurt, MeanScore):
    """The reward of the same name, as a metric."""

    key: ClassVar[str] = "semantic/bleurt"
