"""Number of different n-grams over all n-grams of the text, or of all texts together (0 to 1)."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.text.ngrams import Ngram, ngram_counts
from reward_servers.text.scripts import spaced

ORDERS = (1, 2, 3)


class DistinctN(Settings):
    """Distinct-n on lower-cased words between blanks; a text without n-grams gets 0.

    In scripts without blanks each character is a word. A metric counts the n-grams of all texts together,
    for n of 1, 2 and 3 unless `n` is given. Larger corpora repeat more, so compare equal sizes only.

    `variant=distinctness` is the measure of LoL-RL's experiments on helpful and harmless assistants: letter
    case counts, single blanks separate words, and the number of words is the divisor.

    Li et al., "A Diversity-Promoting Objective Function for Neural Conversation Models" (NAACL 2016).
    """

    n: int | None = Field(default=None, ge=1)  # None: 2 as a reward; 1, 2 and 3 as a metric
    variant: Literal["distinct", "distinctness"] = "distinct"

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [self.of_texts([sample.text], self.n or 2) for sample in samples]

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        orders = ORDERS if self.n is None else (self.n,)
        texts = [sample.text for sample in samples]
        return {f"lexical/distinct-{n}": MetricValue(corpus=self.of_texts(texts, n)) for n in orders}

    def of_texts(self, texts: Sequence[str], n: int) -> float:
        return distinct_share(texts, n) if self.variant == "distinct" else distinctness(texts, n)


def distinct(texts: Sequence[Counter[Ngram]]) -> float:
    """Return the number of different n-grams over all n-grams of all texts; 0 without n-grams.

    >>> distinct([ngram_counts("a b a".split(), 1), ngram_counts("b".split(), 1)])
    0.5
    """
    total = sum(text.total() for text in texts)
    return len(set().union(*texts)) / total if total else 0.0


def distinct_share(texts: Sequence[str], n: int) -> float:
    """Return the share of different n-grams among all.

    >>> distinct_share(["A b", "a  b c"], 2)  # a b, a b, b c
    0.6666666666666666
    """
    return distinct([ngram_counts(spaced(text.lower()).split(), n) for text in texts])


def distinctness(texts: Sequence[str], n: int) -> float:
    """Return the number of different n-grams over the number of words.

    >>> distinctness(["A b", "a b c"], 2)  # A b, a b, b c; five words
    0.6
    """
    words = [text.split(" ") for text in texts]
    ngrams: set[Ngram] = set().union(*(ngram_counts(text, n) for text in words))
    return len(ngrams) / sum(map(len, words))
