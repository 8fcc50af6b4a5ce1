"""BLEU of the text against all its references, with sacrebleu's tokenizers and smoothing (0 to 1)."""

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Literal

from pydantic import Field

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.text.references import reference_streams, references_of, with_blanks

# unicode: 13a with blanks around the characters of scripts that have none. The others are sacrebleu's that
# need no download.
Tokenizer = Literal["unicode", "13a", "intl", "char", "zh", "none"]
Smoothing = Literal["none", "floor", "add-k", "exp"]


class SacreBleu(Settings):
    """BLEU of one text at a time; as a metric, n-grams are counted over the whole corpus.

    There, `effective_order` affects only a corpus in which no text at all has four words.

    Post, "A Call for Clarity in Reporting BLEU Scores" (WMT 2018); smoothing as in Chen & Cherry, "A
    Systematic Comparison of Smoothing Techniques for Sentence-Level BLEU" (WMT 2014).
    """

    needs_references: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("sacrebleu",)

    tokenize: Tokenizer = "unicode"
    lowercase: bool = False
    smooth_method: Smoothing = "exp"
    smooth_value: float | None = Field(default=None, ge=0)
    # Count only n-grams that fit into the text. RL4LMs leaves it off: texts of up to three words get 0.
    effective_order: bool = True

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [self.of_sample(sample) for sample in samples]

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        read = [self.read(sample) for sample in samples]
        corpus = corpus_bleu(self.counter(self.effective_order), read, "sacre_bleu")
        return {"lexical/sacrebleu": MetricValue(corpus=corpus, rows=tuple(self.score(samples)))}

    def of_sample(self, sample: Sample) -> float:
        return bleu_of_text(self.counter(self.effective_order), self.read(sample), "sacre_bleu")

    def read(self, sample: Sample) -> Sample:
        """Return the sample as sacrebleu's tokenizer gets it."""
        return with_blanks(sample) if self.tokenize == "unicode" else sample

    def counter(self, effective_order: bool) -> Any:
        """Return sacrebleu's counter with these options."""
        return bleu(
            tokenize="13a" if self.tokenize == "unicode" else self.tokenize,
            lowercase=self.lowercase,
            smooth_method=self.smooth_method,
            smooth_value=self.smooth_value,
            effective_order=effective_order,
        )


def bleu_of_text(counter: Any, sample: Sample, name: str) -> float:
    """Return BLEU of a corpus of one text, 0 to 1; sacrebleu's sentence score would warn of each text.

    Raises:
        InputError: the sample has no reference.
    """
    references = [[reference] for reference in references_of(sample, name)]
    return float(counter.corpus_score([sample.text], references).score) / 100


def corpus_bleu(counter: Any, samples: Sequence[Sample], name: str) -> float:
    """Return BLEU of all texts together, 0 to 1.

    Raises:
        InputError: a sample has no reference.
    """
    texts = [sample.text for sample in samples]
    return float(counter.corpus_score(texts, reference_streams(samples, name)).score) / 100


@cache
def bleu(**options: Any) -> Any:
    from sacrebleu.metrics import BLEU

    return BLEU(force=True, **options)  # no warnings about texts that look tokenized
