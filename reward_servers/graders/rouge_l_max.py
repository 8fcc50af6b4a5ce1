"""ROUGE-L F of the text against the best of its references, as ROUGE-1.5.5 computes it (0 to 1)."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, Literal

from pydantic import Field

from contracts.scores import Sample
from reward_servers.graders.grader import Grader
from reward_servers.graders.rouge import num_summary_hits
from reward_servers.text import wordnet
from reward_servers.text.references import references_of
from reward_servers.text.scripts import check_latin, spaced, words_of, words_or_signs
from reward_servers.text.words import original_stem, plain_words

NO_WORD = re.compile("[^A-Za-z0-9]")
Unit = Literal["words", "bytes"]
Tokenizer = Literal["unicode", "py_rouge"]


class RougeLMax(Grader):
    """ROUGE-L with the arithmetic of py-rouge 1.1, which RL4LMs calls, over lines as sentences.

    `alpha` weighs recall against precision. RL4LMs' experiments set `length_limit: 100` and
    `weight_factor: 1.2`, which raises precision and recall to the power 1/1.2. Words are those of any script;
    with `tokenizer=py_rouge` they are of a to z and digits, as there.
    """

    key: ClassVar[str] = "lexical/rouge_l_max"
    needs_references: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("wordnet",)

    length_limit: int | None = Field(default=None, ge=1)  # cuts both the text and the references
    length_limit_type: Unit = "words"
    alpha: float = Field(default=0.5, gt=0, lt=1)
    weight_factor: float = Field(default=1.0, gt=0)
    stemming: bool = True
    tokenizer: Tokenizer = "unicode"

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [self.of_sample(sample) for sample in samples]

    def of_sample(self, sample: Sample) -> float:
        targets = references_of(sample, "rouge_l_max")
        for target in targets if self.tokenizer == "py_rouge" else ():
            check_latin(target, "rouge_l_max with tokenizer=py_rouge", "tokenizer=unicode")
        return max(self._of_pair(target, sample.text) for target in targets)

    def _of_pair(self, target: str, text: str) -> float:
        left, right = self._lines(target), self._lines(text)
        hits = num_summary_hits(left, right)
        if not hits:
            return 0.0
        precision = (hits / sum(map(len, right))) ** (1 / self.weight_factor)
        recall = (hits / sum(map(len, left))) ** (1 / self.weight_factor)
        return float(precision * recall / ((1 - self.alpha) * precision + self.alpha * recall))

    def _lines(self, text: str) -> tuple[tuple[str, ...], ...]:
        lines = summary_lines(text, self.length_limit, self.length_limit_type, self.tokenizer)
        return tuple(tuple(map(_base, line)) for line in lines) if self.stemming else lines


@lru_cache(maxsize=1024)
def summary_lines(
    text: str, limit: int | None, unit: Unit, tokenizer: Tokenizer
) -> tuple[tuple[str, ...], ...]:
    """Return the words of each line: letters and digits in lower case, up to the limit.

    `unicode` takes characters of scripts without blanks for words, and the signs of a text without others.
    """
    lines = [line.strip() for line in text.split("\n")]
    spread = tokenizer == "unicode" and unit == "words"
    if limit is not None:
        lines = _shortened([spaced(line) for line in lines] if spread else lines, limit, unit)
    if tokenizer == "py_rouge":
        return tuple(tuple(plain_words(NO_WORD.sub(" ", line.lower()).strip())) for line in lines)
    cut = words_of if words_of(text) else words_or_signs
    return tuple(tuple(plain_words(" ".join(cut(line)))) for line in lines)


def _shortened(lines: Sequence[str], limit: int, unit: Unit) -> list[str]:
    kept: list[str] = []
    for line in lines:
        pieces: Sequence[str] = line.split() if unit == "words" else line
        kept.append((" " if unit == "words" else "").join(pieces[:limit]))
        limit -= len(pieces)
        if limit <= 0:
            break
    return kept


def _base(word: str) -> str:
    if len(word) <= 3 or not word.isascii():
        return word
    return wordnet.rouge_base(word) or original_stem(word)
