"""Positivity of the text by VADER's lexicon, from 0 (negative) over 0.5 (neutral) to 1 (positive)."""

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

from contracts.scores import Sample
from reward_servers.graders.grader import Grader
from reward_servers.text.whole_text import whole_text


class Sentiment(Grader):
    """VADER's compound value c, in -1 to 1, mapped to (c + 1) / 2.

    Hutto & Gilbert, "VADER: A Parsimonious Rule-based Model for Sentiment Analysis" (ICWSM 2014).
    """

    key: ClassVar[str] = "semantic/sentiment"

    include_prompt: bool = False

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [positivity(sample, self.include_prompt) for sample in samples]


def positivity(sample: Sample, include_prompt: bool) -> float:
    """Score the text alone, or prompt and text joined; a text without sentiment words gives 0.5."""
    return (_analyzer().polarity_scores(whole_text(sample, include_prompt))["compound"] + 1.0) / 2.0


@cache
def _analyzer() -> Any:
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer  # reads its lexicon: 0.1 s

    return SentimentIntensityAnalyzer()
