"""ROUGE F1 against the printed list of all references: RL4LMs' value for use_single_ref=False (0 to 1)."""

from collections.abc import Sequence
from typing import ClassVar

from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.rewards.rouge import RougeType, rouge_of_pair
from reward_servers.text.references import printed_references


class RougeRl4lmsCompat(Settings):
    """ROUGE against all references joined into one, for comparison with published numbers only.

    With one reference it is plain ROUGE, unless the reference holds line breaks or other control characters.
    """

    needs_references: ClassVar[bool] = True

    rouge_type: RougeType = "rougeL"

    def score(self, samples: Sequence[Sample]) -> list[float]:
        kinds = (self.rouge_type,)
        return [
            rouge_of_pair(printed_references(sample, "rouge_rl4lms_compat"), sample.text, kinds)[kinds[0]]
            for sample in samples
        ]
