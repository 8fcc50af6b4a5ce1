"""Mean positivity of the texts by VADER's lexicon (0 to 1, 0.5 is neutral)."""

from typing import ClassVar

from reward_servers.metrics.mean import MeanScore
from reward_servers.rewards import sentiment


class Sentiment(sentiment.Sentiment, MeanScore):
    """The reward of the same name, as a metric."""

    key: ClassVar[str] = "semantic/sentiment"
