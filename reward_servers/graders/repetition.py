"""Penalty for repetition: minus the share of n-grams that occurred before in the text (-1 to 0)."""

from collections.abc import Sequence

from pydantic import Field

from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.graders.distinct_n import distinct
from reward_servers.text.ngrams import ngram_counts
from reward_servers.text.scripts import spaced


class Repetition(Settings):
    """The n-gram repetition penalty on lower-cased words between blanks; a text without n-grams gets 0.

    In scripts without blanks each character is a word.

    Yeo et al., "Demystifying Long Chain-of-Thought Reasoning in LLMs" (2025, 2502.03373).
    """

    n: int = Field(default=4, ge=1)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [penalty(sample.text, self.n) for sample in samples]


def penalty(text: str, n: int) -> float:
    """Return minus the share of repeated n-grams.

    >>> penalty("a b a b", n=2)  # a b, b a, a b: one of three was there before
    -0.33333333333333337
    """
    counts = ngram_counts(spaced(text.lower()).split(), n)
    return distinct([counts]) - 1.0 if counts else 0.0
