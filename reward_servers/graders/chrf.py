"""chrF of the text against its best reference: F score of character n-grams (0 to 1)."""

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

from pydantic import Field

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.text.references import reference_streams, references_of


class Chrf(Settings):
    """chrF2 by default, computed by sacrebleu; `word_order: 2` is chrF++.

    As a metric, n-grams are counted over the whole corpus, each text's against its best reference.

    Popović, "chrF: character n-gram F-score for automatic MT evaluation" (WMT 2015), and "chrF++: words
    helping character n-grams" (WMT 2017).
    """

    needs_references: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("sacrebleu",)

    char_order: int = Field(default=6, ge=1)
    word_order: int = Field(default=0, ge=0)
    beta: int = Field(default=2, ge=1)  # how much more recall weighs than precision
    lowercase: bool = False

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [self.of_sample(sample) for sample in samples]

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        texts = [sample.text for sample in samples]
        corpus = self.counter().corpus_score(texts, reference_streams(samples, "chrf"))
        value = MetricValue(corpus=float(corpus.score) / 100, rows=tuple(self.score(samples)))
        return {"lexical/chrf": value}

    def of_sample(self, sample: Sample) -> float:
        return float(self.counter().sentence_score(sample.text, references_of(sample, "chrf")).score) / 100

    def counter(self) -> Any:
        """Return sacrebleu's counter with these options."""
        return _chrf(**self.model_dump())


@cache
def _chrf(**options: Any) -> Any:
    from sacrebleu.metrics import CHRF

    return CHRF(**options)
