"""Share of the text that is one strictly increasing run of numbers, from its first number on (0 to 1)."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from pydantic import Field

from contracts.scores import Sample
from reward_servers.graders.grader import Grader


class IncreasingNumbers(Grader):
    """The length of the first increasing run over the number of words.

    The divisor is at least half of `min_tokens`, so that a single number is no perfect answer.
    """

    key: ClassVar[str] = "synthetic/increasing_numbers_in_text"

    min_tokens: int = Field(default=20, ge=0)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [increasing_fraction(sample.text, self.min_tokens) for sample in samples]


def increasing_fraction(text: str, min_tokens: int) -> float:
    """Return RL4LMs' synthetic reward: run length / max(number of words, min_tokens / 2).

    The run begins at the first number and ends before the first number that is not larger than its
    predecessor. Other words are skipped, but count in the denominator.

    >>> increasing_fraction("1 2 then 3 2 9", min_tokens=0)  # the run 1 2 3, of 6 words
    0.5
    """
    words = text.split()
    numbers = [number for word in words if (number := _number(word)) is not None]
    if not numbers:
        return 0.0
    run = 1
    for previous, number in pairwise(numbers):
        if number <= previous:
            break
        run += 1
    return run / max(len(words), min_tokens / 2)


def _number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None  # "nan" and "infinity" are words
