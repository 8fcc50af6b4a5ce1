"""Mean METEOR of the texts against their best references (0 to 1)."""

from typing import ClassVar

from reward_servers.metrics.mean import MeanScore
from reward_servers.rewards import meteor


class Meteor(meteor.Meteor, MeanScore):
    """The reward of the same name, with its options, as a metric."""

    key: ClassVar[str] = "lexical/meteor"
