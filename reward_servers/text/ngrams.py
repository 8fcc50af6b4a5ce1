"""Counts of n-grams."""

from collections import Counter
from collections.abc import Sequence

Ngram = tuple[str, ...]


def ngram_counts(words: Sequence[str], order: int) -> Counter[Ngram]:
    """Count each sequence of `order` neighbouring words.

    >>> ngram_counts(["a", "b", "a", "b"], 2)
    Counter({('a', 'b'): 2, ('b', 'a'): 1})
    """
    return Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))
