"""Share of the answers in which a classifier finds the intent that the meta data asks for (0 to 1)."""

from typing import ClassVar

from reward_servers.metrics.mean import MeanScore
from reward_servers.rewards import intent_accuracy


class IntentAccuracy(intent_accuracy.IntentAccuracy, MeanScore):
    """The reward of the same name, as a metric."""

    key: ClassVar[str] = "intent/accuracy"
