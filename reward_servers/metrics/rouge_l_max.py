"""Mean ROUGE-L F of the texts against their best references, as ROUGE-1.5.5 computes it (0 to 1)."""

from typing import ClassVar

from reward_servers.metrics.mean import MeanScore
from reward_servers.rewards import rouge_l_max


class RougeLMax(rouge_l_max.RougeLMax, MeanScore):
    """The reward of the same name, with its options, as a metric."""

    key: ClassVar[str] = "lexical/rouge_l_max"
