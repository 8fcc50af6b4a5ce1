"""Mean BERTScore F1 of the texts against their best references (0 to 1)."""

from typing import ClassVar

from reward_servers.metrics.mean import MeanScore
from reward_servers.rewards import bert_score


class BertScore(bert_score.BertScore, MeanScore):
    """The reward of the same name, as a metric."""

    key: ClassVar[str] = "semantic/bert_score"
