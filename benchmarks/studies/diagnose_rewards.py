"""Rewards with a fault built in, for `benchmarks/studies/diagnose.py`."""

import random
from collections.abc import Sequence
from itertools import pairwise

from contracts.scores import Sample
from contracts.settings import Settings


class Constant(Settings):
    """The same score for every text, which teaches nothing."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [0.5] * len(samples)


class Repeats(Settings):
    """Share of the words that equal the word before: a reward that repetition exploits."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [_share_of_repeats(sample.text.split()) for sample in samples]


class Noise(Settings):
    """A number independent of the text."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [random.random() for _ in samples]


class Easy(Settings):
    """1 for a text whose first number is above the prompt's last, which is soon fully learned."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [float(_first_goes_up(sample)) for sample in samples]


def _share_of_repeats(words: Sequence[str]) -> float:
    pairs = list(pairwise(words))
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else 0.0


def _first_goes_up(sample: Sample) -> bool:
    words = sample.text.split()
    return bool(words) and int(words[0]) > int(sample.prompt.split()[-1])


class Hundreds(Settings):
    """Hundreds for each number of a text, far from 1."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [300.0 * len(set(sample.text.split())) for sample in samples]
