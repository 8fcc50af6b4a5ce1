"""BLEU over all texts together, on words between blanks, unsmoothed, as in NLTK or RL4LMs.

    BLEU = exp(min(0, 1 - r / c)) · (Π matches_n / ngrams_n)^(1 / orders)

c is the length of all texts, r the length of their references. The variants and sacrebleu differ in two
points:

              a text's part of r                      n-grams of a text of fewer than n words
    nltk      the reference nearest in length         1 without a match
    rl4lms    the shortest reference                  0
    sacrebleu the reference nearest in length         0

`nltk` is NLTK's `corpus_bleu` without a smoothing function; if an order has no match, NLTK's value is below
1e-70 and ours 0. `rl4lms` is the script of TensorFlow's translation tutorial, which RL4LMs calls as
`datasets`' metric. Papineni et al., "BLEU: a Method for Automatic Evaluation of Machine Translation" (2002).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from reward_servers.text.ngrams import Ngram, ngram_counts

Variant = Literal["nltk", "rl4lms"]
Words = Sequence[str]


def bleu(pairs: Iterable[tuple[Words, Sequence[Words]]], max_order: int, variant: Variant) -> float:
    """Return BLEU of all texts together, 0 to 1.

    >>> short = ("yes I do".split(), ["yes I do".split()])
    >>> long = ("a b c d e".split(), ["a b c d e".split(), "a b".split()])
    >>> bleu([short, long], 4, "rl4lms"), round(bleu([short, long], 4, "nltk"), 3)
    (1.0, 0.904)
    """
    matches, totals = [0] * max_order, [0] * max_order
    length = target_length = 0
    for text, references in pairs:
        length += len(text)
        target_length += _target_length(len(text), [len(words) for words in references], variant)
        for order in range(1, max_order + 1):
            counts = ngram_counts(text, order)
            matches[order - 1] += (counts & _most(references, order)).total()
            totals[order - 1] += max(counts.total(), 1 if variant == "nltk" else 0)
    if not all(matches):
        return 0.0
    precision = math.fsum(math.log(hit / total) for hit, total in zip(matches, totals, strict=True))
    return math.exp(min(0.0, 1.0 - target_length / length) + precision / max_order)


def _target_length(length: int, lengths: Sequence[int], variant: Variant) -> int:
    """Return a text's summand of r; prefer the shorter of two references equally near in length."""
    if variant == "rl4lms":
        return min(lengths)
    return min(lengths, key=lambda candidate: (abs(candidate - length), candidate))


def _most(references: Sequence[Words], order: int) -> Counter[Ngram]:
    """Return each n-gram's highest count in a reference."""
    most: Counter[Ngram] = Counter()
    for words in references:
        most |= ngram_counts(words, order)
    return most
