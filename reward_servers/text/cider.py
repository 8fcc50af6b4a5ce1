"""CIDEr-D, a text's agreement with several references, in which rare n-grams count most.

Vedantam, Zitnick & Parikh, "CIDEr: Consensus-based Image Description Evaluation" (CVPR 2015), section 4, as
its authors' COCO evaluation code computes it:

    g(ngram)  = count · (log N - log max(1, df))          df of N sets of references hold the n-gram
    CIDEr-D_n = mean over references of exp(-(l - l')² / 2σ²) · Σ min(g, g') · g' / (|g| · |g'|)
    CIDEr-D   = 10 · mean over n = 1 … 4

The lengths l, l' are numbers of bigrams and σ is 6, as in that code.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reward_servers.text.ngrams import Ngram, ngram_counts

ORDERS = (1, 2, 3, 4)
SIGMA = 6.0

Words = Sequence[str]


@dataclass(frozen=True, slots=True)
class DocumentFrequencies:
    """The number of sets of references that hold each n-gram, and the number of sets."""

    counts: Mapping[Ngram, int]
    num_documents: int

    def weight(self, ngram: Ngram) -> float:
        return math.log(self.num_documents) - math.log(max(1, self.counts.get(ngram, 0)))


def document_frequencies(reference_sets: Iterable[Sequence[Words]]) -> DocumentFrequencies:
    """Count the sets of references with each n-gram; a set is one document.

    >>> found = document_frequencies([[["a", "b"], ["a"]], [["a"]]])
    >>> found.counts[("a",)], found.counts[("a", "b")], found.num_documents
    (2, 1, 2)
    """
    counts: Counter[Ngram] = Counter()
    num_documents = 0
    for references in reference_sets:
        counts.update(
            {ngram for words in references for order in ORDERS for ngram in ngram_counts(words, order)}
        )
        num_documents += 1
    return DocumentFrequencies(counts, num_documents)


def cider(text: Words, references: Sequence[Words], frequencies: DocumentFrequencies) -> float:
    """Return CIDEr-D, 0 to 10. With a single set of references every weight and the value are 0."""
    vectors = _vectors(text, frequencies)
    total = 0.0
    for reference in references:
        other = _vectors(reference, frequencies)
        gap = max(0, len(text) - 1) - max(0, len(reference) - 1)
        closeness = math.exp(-(gap**2) / (2 * SIGMA**2))
        total += closeness * sum(map(_similarity, vectors, other)) / len(ORDERS)
    return 10.0 * total / len(references)


def _vectors(words: Words, frequencies: DocumentFrequencies) -> list[dict[Ngram, float]]:
    return [
        {ngram: count * frequencies.weight(ngram) for ngram, count in ngram_counts(words, order).items()}
        for order in ORDERS
    ]


def _similarity(vector: Mapping[Ngram, float], other: Mapping[Ngram, float]) -> float:
    """Return the cosine; an n-gram counts at most as much as in the reference."""
    norms = _norm(vector) * _norm(other)
    if norms == 0.0:
        return 0.0
    return (
        sum(min(value, other[ngram]) * other[ngram] for ngram, value in vector.items() if ngram in other)
        / norms
    )


def _norm(vector: Mapping[Ngram, float]) -> float:
    return math.sqrt(sum(value**2 for value in vector.values()))
