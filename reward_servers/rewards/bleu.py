"""BLEU of the text against all its references, on words that blanks separate, without smoothing (0 to 1)."""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.rewards.sacre_bleu import Smoothing, bleu
from reward_servers.text.references import references_of


class Bleu(Settings):
    """BLEU of one text at a time; a text that shares no four words in a row with a reference gets 0.

    Papineni et al., "BLEU: a Method for Automatic Evaluation of Machine Translation" (ACL 2002). Of several
    references the one nearest in length counts for brevity; RL4LMs takes the shortest.
    """

    needs_references: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("sacrebleu",)

    max_order: int = Field(default=4, ge=1)  # BLEU-3 and BLEU-4 are two of RL4LMs' papers' columns
    smooth_method: Smoothing = "none"
    # Only n-grams that the text is long enough for. RL4LMs leaves it off: texts of up to three words get 0.
    effective_order: bool = True

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [self.of_sample(sample) for sample in samples]

    def of_sample(self, sample: Sample) -> float:
        references = references_of(sample, "bleu")
        return float(self.counter(self.effective_order).sentence_score(sample.text, references).score) / 100

    def counter(self, effective_order: bool) -> Any:
        """sacrebleu's own."""
        return bleu(
            tokenize="none",
            max_ngram_order=self.max_order,
            smooth_method=self.smooth_method,
            effective_order=effective_order,
        )
