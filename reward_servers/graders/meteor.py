"""METEOR of the text against its best reference: words, stems and synonyms in order (0 to 1)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import Field

from contracts.scores import Sample
from reward_servers.graders.grader import Grader
from reward_servers.text import wordnet
from reward_servers.text.references import references_of
from reward_servers.text.words import reference_words, stem, words


class Meteor(Grader):
    """NLTK's METEOR with its own parameters, which are those of RL4LMs.

    Lavie & Agarwal, "METEOR: An Automatic Metric for MT Evaluation with High Levels of Correlation with
    Human Judgments" (WMT 2007). A text of m words that equals its reference scores 1 - gamma / m^beta.
    """

    key: ClassVar[str] = "lexical/meteor"
    needs_references: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("wordnet",)

    alpha: float = Field(default=0.9, gt=0, lt=1)  # weight of recall against precision
    beta: float = Field(default=3.0, ge=0)  # exponent of the penalty for scattered matches
    gamma: float = Field(default=0.5, ge=0, le=1)  # the largest such penalty

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [self.of_sample(sample) for sample in samples]

    def of_sample(self, sample: Sample) -> float:
        text = words(sample.text)
        return max(self.of_words(target, text) for target in references_of(sample, "meteor"))

    def of_words(self, target: str, text: Sequence[str]) -> float:
        from nltk.translate.meteor_score import single_meteor_score  # 1 s

        return float(
            single_meteor_score(
                reference_words(target),
                text,
                stemmer=_Stems,
                wordnet=_WordNet,
                alpha=self.alpha,
                beta=self.beta,
                gamma=self.gamma,
            )
        )


class _Stems:
    """A cached stemmer with NLTK's interface."""

    stem = staticmethod(stem)


class _Name(str):
    """A lemma with NLTK's interface."""

    def name(self) -> str:
        return self


class _Synset(tuple[_Name, ...]):
    """A synset with NLTK's interface that holds all synonyms of a word."""

    def lemmas(self) -> Sequence[Any]:
        return self


class _WordNet:
    """A cached WordNet with NLTK's interface: look-ups take most of METEOR's time."""

    @staticmethod
    @lru_cache(maxsize=65536)
    def synsets(word: str) -> tuple[_Synset]:
        return (_Synset(map(_Name, wordnet.synonyms(word))),)
