"""Mean of ROUGE-1, -2 and -L F1 of the text against its references, with stemming (0 to 1)."""

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.graders.rouge import References, RougeType, Tokenizer, rouge_f1

KINDS: tuple[RougeType, ...] = ("rouge1", "rouge2", "rougeL")


class RougeCombined(Settings):
    """RL4LMs' `rouge_combined`; of several references each kind takes its best one, or all the first."""

    needs_references: ClassVar[bool] = True

    references: References = "best"
    tokenizer: Tokenizer = "unicode"

    def score(self, samples: Sequence[Sample]) -> list[float]:
        rows = [rouge_f1(sample, KINDS, self.references, self.tokenizer) for sample in samples]
        return [fmean(scores.values()) for scores in rows]
