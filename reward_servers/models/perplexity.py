"""Perplexity: exp of the mean negative log-likelihood of a token, over sliding windows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from contracts.errors import InputError
from contracts.scores import MetricValue

JOINT = "\n\n"  # text between the texts of a corpus that is read as one


@dataclass(frozen=True, slots=True)
class Window:
    """A window that reads tokens `begin` to `end` (not included), and scores those from `first` on.

    Example: `Window(begin=2, end=6, first=4)` reads tokens 2 to 5, and scores 4 and 5.
    """

    begin: int
    end: int
    first: int


def windows(num_tokens: int, size: int, stride: int) -> Iterator[Window]:
    """Yield windows of at most `size` tokens, `stride` apart, that score each token once.

    The text's first token has no context and is not scored. Except in the first window, each scored token
    sees at least `size - stride` earlier tokens.

    >>> [(each.begin, each.end, each.first) for each in windows(7, size=4, stride=2)]
    [(0, 4, 1), (2, 6, 4), (4, 7, 6)]

    Raises:
        InputError: the stride would leave tokens without context.
    """
    if not 1 <= stride < size:
        raise InputError(
            f"stride={stride}, and the model reads windows of {size} tokens; expected 1 to {size - 1}, so "
            f"that every token has context"
        )
    begin, first = 0, 1
    while first < num_tokens:
        end = min(begin + size, num_tokens)
        yield Window(begin, end, first)
        begin, first = begin + stride, end


def perplexity(nlls_of_texts: Sequence[Sequence[float]]) -> MetricValue:
    """Return the perplexity from the negative log-likelihoods of each text's scored tokens.

    The corpus value is over all tokens of all texts, not the mean of the texts' values. If every text has a
    scored token, the value has rows.

    >>> value = perplexity([[math.log(2), math.log(8)], [math.log(4)]])
    >>> round(value.corpus, 9), [round(row, 9) for row in value.rows]
    (4.0, [4.0, 4.0])

    Raises:
        InputError: no text has a scored token.
    """
    if not any(nlls_of_texts):
        raise InputError("no text has a token to score: expected a text of two tokens or more")
    rows = tuple(_exp_mean(nlls) for nlls in nlls_of_texts) if all(nlls_of_texts) else None
    return MetricValue(corpus=_exp_mean([nll for nlls in nlls_of_texts for nll in nlls]), rows=rows)


def _exp_mean(nlls: Sequence[float]) -> float:
    return math.exp(min(700.0, math.fsum(nlls) / len(nlls)))  # exp(710) is beyond a float
