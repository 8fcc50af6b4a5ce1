"""Number of different n-grams over all n-grams of the text: 1 without repetition, near 0 in a loop."""

from collections import Counter
from collections.abc import Sequence

from pydantic import Field

from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.text.ngrams import Ngram, ngram_counts
from reward_servers.text.scripts import spaced


class DistinctN(Settings):
    """Distinct-n on lower-cased words between blanks; a text without n-grams gets 0.

    In scripts without blanks each character is a word.

    Li et al., "A Diversity-Promoting Objective Function for Neural Conversation Models" (NAACL 2016).
    """

    n: int = Field(default=2, ge=1)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        texts = [spaced(sample.text.lower()).split() for sample in samples]
        return [distinct([ngram_counts(words, self.n)]) for words in texts]


def distinct(texts: Sequence[Counter[Ngram]]) -> float:
    """Return the number of different n-grams over all n-grams of all texts; 0 without n-grams.

    >>> distinct([ngram_counts("a b a".split(), 1), ngram_counts("b".split(), 1)])
    0.5
    """
    total = sum(text.total() for text in texts)
    return len(set().union(*texts)) / total if total else 0.0
