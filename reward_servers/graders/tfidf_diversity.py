"""Mean tf-idf weight of the text's words, low for a few common ones and for very short texts (0 to 1)."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar, Self

import regex
from pydantic import Field, model_validator

from contracts.errors import InputError
from contracts.scores import Sample
from contracts.whole_texts import json_of
from reward_servers.graders.grader import Grader
from reward_servers.text.scripts import CHARACTER

# scikit-learn's words, with the marks of other scripts; single characters of scripts without blanks
WORD = regex.compile(rf"(?=[{CHARACTER}])\X|\b(?:(?![{CHARACTER}])\w){{2,}}\b")


class TfidfDiversity(Grader):
    """LoL-RL's reward: the mean of the non-zero entries of the text's tf-idf vector of length 1.

    `corpus` gives the documents, usually the training data's responses: a file with one on each line or, if
    its name ends in .jsonl, in the `field` of each line. Words outside of it don't count. Without a corpus
    all words weigh the same. A text of fewer than `full_from` different known words gets the value times
    their share of `ramp` words. Baheti et al., "Leftover Lunch: Advantage-based Offline Reinforcement
    Learning for Language Models" (ICLR 2024); the defaults are those of its code.
    """

    key: ClassVar[str] = "diversity_metrics/tfidf"

    corpus: str | None = None
    field: str = "text"
    full_from: int = Field(default=5, ge=1)
    ramp: int = Field(default=10, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.corpus is not None and not Path(self.corpus).is_file():
            raise InputError(
                f"tfidf_diversity.corpus={self.corpus}: there is no such file; expected one text on each "
                f"line, or a .jsonl file with the texts in '{self.field}'"
            )
        return self

    def check(self) -> None:
        """Read the corpus, and refuse one that can't be read."""
        if self.corpus is not None:
            inverse_frequencies(self.corpus, self.field)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        weights = None if self.corpus is None else inverse_frequencies(self.corpus, self.field)
        return [self.of_text(sample.text, weights) for sample in samples]

    def of_text(self, text: str, weights: dict[str, float] | None) -> float:
        counts = Counter(WORD.findall(text.lower()))
        entries = [
            count * (1.0 if weights is None else weights[word])
            for word, count in counts.items()
            if weights is None or word in weights
        ]
        if not entries:
            return 0.0
        mean = math.fsum(entries) / math.hypot(*entries) / len(entries)
        return mean if len(entries) >= self.full_from else mean * min(1.0, len(entries) / self.ramp)


@cache
def inverse_frequencies(corpus: str, field: str) -> dict[str, float]:
    """Return ln((1 + documents) / (1 + documents with the word)) + 1 by word, as scikit-learn smooths it."""
    texts = _texts(corpus, field)
    frequencies = Counter(word for text in texts for word in set(WORD.findall(text.lower())))
    return {word: math.log((1 + len(texts)) / (1 + count)) + 1 for word, count in frequencies.items()}


def _texts(corpus: str, field: str) -> list[str]:
    try:
        text = Path(corpus).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"tfidf_diversity.corpus={corpus}: can't be read as UTF-8 text: {error}") from None
    if not corpus.endswith(".jsonl"):
        return text.splitlines()
    where = f"tfidf_diversity.corpus={corpus}, line "
    lines = enumerate(text.split("\n"), start=1)  # splitlines() would also split inside texts, at U+2028
    return [_text(line, field, f"{where}{number}") for number, line in lines if line.strip()]


def _text(line: str, field: str, where: str) -> str:
    try:
        return str(json_of(line, where)[field])
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(
            f'{where}: {type(error).__name__}: {error}; expected {{"{field}": "…"}}, or another field=NAME'
        ) from None
