"""Counting n-grams, and the longest common subsequence."""

from collections import Counter
from collections.abc import Sequence

Ngram = tuple[str, ...]


def ngram_counts(words: Sequence[str], order: int) -> Counter[Ngram]:
    """How often each run of `order` words occurs.

    >>> ngram_counts(["a", "b", "a", "b"], 2)
    Counter({('a', 'b'): 2, ('b', 'a'): 1})
    """
    return Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))


def common_subsequence_length(left: Sequence[str], right: Sequence[str]) -> int:
    """The number of words in the longest sequence that both hold in its order, gaps allowed.

    >>> common_subsequence_length(["michael", "dahlquist"], ["michael", "was", "dahlquist"])
    2
    """
    shared = set(left) & set(right)  # the others can't be part of it, and texts are long
    left = [word for word in left if word in shared]
    row = [0] * (len(left) + 1)
    for word in right:
        if word not in shared:
            continue
        diagonal = 0
        for index, other in enumerate(left, start=1):
            above = row[index]
            row[index] = diagonal + 1 if word == other else max(above, row[index - 1])
            diagonal = above
    return row[-1]
