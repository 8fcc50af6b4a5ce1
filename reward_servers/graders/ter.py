"""1 - TER of the text, from its edits and phrase moves to the nearest reference; as a metric: TER."""

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

from pydantic import Field

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.text.alignment import edit_distance
from reward_servers.text.references import references_of, with_blanks

# The smallest number of edits to any reference, and the references' mean length.
Edits = tuple[float, float]


class Ter(Settings):
    """1 - TER with sacrebleu's search for moved phrases; 1 for equal texts, down to below 0.

    The metric is TER itself, for which smaller is better: all edits over all words of the references.

    Snover et al., "A Study of Translation Edit Rate with Targeted Human Annotation" (AMTA 2006). The search
    takes seconds for texts of a hundred words and minutes for longer ones. Beyond `max_words` there is none:
    only inserted, deleted and replaced words count then. In scripts without blanks each character is a word;
    `asian_support` is sacrebleu's own way with some of them.
    """

    needs_references: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("sacrebleu",)

    max_words: int = Field(default=128, ge=1)
    normalized: bool = False
    no_punct: bool = False
    asian_support: bool = False
    case_sensitive: bool = False

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [1.0 - rate([self.of_sample(sample)]) for sample in samples]

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        edits = [self.of_sample(sample) for sample in samples]
        return {"lexical/ter": MetricValue(corpus=rate(edits), rows=tuple(rate([row]) for row in edits))}

    def of_sample(self, sample: Sample) -> Edits:
        tokenize, count = _ter(**self.model_dump(exclude={"max_words"}))
        sample = sample if self.asian_support else with_blanks(sample)
        text = tokenize(sample.text.rstrip()).split()
        targets = [tokenize(target.rstrip()).split() for target in references_of(sample, "ter")]
        counts = [
            count(text, target)[0]
            if max(len(text), len(target)) <= self.max_words
            else edit_distance(text, target)
            for target in targets
        ]
        return min(counts), sum(map(len, targets)) / len(targets)


def rate(edits: Sequence[Edits]) -> float:
    """Return TER of a corpus: all edits over all words of the references.

    >>> rate([(1, 4), (2, 2)])
    0.5
    """
    num_edits, num_words = (sum(column) for column in zip(*edits, strict=True))
    if num_words == 0:
        return float(num_edits > 0)
    return num_edits / num_words


@cache
def _ter(**options: Any) -> tuple[Any, Any]:
    """Return sacrebleu's tokenizer and its search for the fewest edits."""
    from sacrebleu.metrics.lib_ter import translation_edit_rate
    from sacrebleu.metrics.ter import TercomTokenizer

    return TercomTokenizer(**options), translation_edit_rate
