"""BLEU of the text against all its references, on words between blanks, without smoothing (0 to 1)."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.graders.sacre_bleu import Smoothing, bleu, bleu_of_text, corpus_bleu
from reward_servers.text.bleu import bleu as plain_bleu
from reward_servers.text.references import references_of, with_blanks
from reward_servers.text.scripts import spaced


class Bleu(Settings):
    """BLEU of one text at a time; a text that shares no four words in a row with a reference gets 0.

    Papineni et al., "BLEU: a Method for Automatic Evaluation of Machine Translation" (ACL 2002). The variant
    names the arithmetic: sacrebleu's, NLTK's or RL4LMs', see `reward_servers/text/bleu.py`. In scripts
    without blanks each character is a word. As a metric it counts the n-grams of the whole corpus; there,
    `effective_order` affects only a corpus in which no text at all has four words.
    """

    needs_references: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("sacrebleu",)

    max_order: int = Field(default=4, ge=1)  # RL4LMs' paper reports BLEU-3 and BLEU-4
    variant: Literal["sacrebleu", "nltk", "rl4lms"] = "sacrebleu"
    smooth_method: Smoothing = "none"
    # Count only n-grams that fit into the text. NLTK and RL4LMs give 0 to texts of up to three words.
    effective_order: bool = True

    @model_validator(mode="after")
    def _options_of_the_variant(self) -> Self:
        options = self.model_fields_set & {"smooth_method", "effective_order"}
        if self.variant != "sacrebleu" and options:
            raise ValueError(
                f"variant={self.variant} has no {' and no '.join(sorted(options))}: it neither smooths nor "
                f"leaves orders out; expected variant=sacrebleu with these options"
            )
        return self

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [self.of_sample(sample) for sample in samples]

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        if self.variant == "sacrebleu":
            corpus = corpus_bleu(self.counter(self.effective_order), list(map(with_blanks, samples)), "bleu")
        else:
            corpus = self.of_corpus(samples)
        return {"lexical/bleu": MetricValue(corpus=corpus, rows=tuple(self.score(samples)))}

    def of_sample(self, sample: Sample) -> float:
        if self.variant != "sacrebleu":
            return self.of_corpus([sample])
        return bleu_of_text(self.counter(self.effective_order), with_blanks(sample), "bleu")

    def of_corpus(self, samples: Sequence[Sample]) -> float:
        """Return NLTK's or RL4LMs' BLEU of all samples together."""
        assert self.variant != "sacrebleu"
        pairs = (
            (spaced(sample.text).split(), [spaced(one).split() for one in references_of(sample, "bleu")])
            for sample in samples
        )
        return plain_bleu(pairs, self.max_order, self.variant)

    def counter(self, effective_order: bool) -> Any:
        """Return sacrebleu's counter with these options."""
        return bleu(
            tokenize="none",
            max_ngram_order=self.max_order,
            smooth_method=self.smooth_method,
            effective_order=effective_order,
        )
