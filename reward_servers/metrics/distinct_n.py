"""Number of different n-grams over all n-grams of the texts together, for n of 1, 2 and 3 (0 to 1)."""

from collections.abc import Sequence
from typing import Literal

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.rewards.distinct_n import distinct
from reward_servers.text.ngrams import Ngram, ngram_counts
from reward_servers.text.scripts import spaced

ORDERS = (1, 2, 3)


class DistinctN(Settings):
    """The share of different n-grams of lower-cased words between blanks.

    In scripts without blanks each character is a word.

    Larger corpora repeat more, so compare equal sizes only.

    `variant=distinctness` is the measure of LoL-RL's experiments on helpful and harmless assistants: letter
    case counts, single blanks separate words, and the number of words is the divisor.
    """

    variant: Literal["distinct", "distinctness"] = "distinct"

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        texts = [sample.text for sample in samples]
        value = distinct_share if self.variant == "distinct" else distinctness
        return {f"lexical/distinct-{n}": MetricValue(corpus=value(texts, n)) for n in ORDERS}


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
    found: set[Ngram] = set().union(*(ngram_counts(text, n) for text in words))
    return len(found) / sum(map(len, words))
