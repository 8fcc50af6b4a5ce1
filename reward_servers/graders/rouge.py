"""ROUGE F1 of the text against its references, with stemming (0 to 1)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, Literal, get_args

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.graders.grader import mean_of
from reward_servers.text.alignment import common_length, common_positions
from reward_servers.text.references import references_of
from reward_servers.text.scripts import check_latin, words_of, words_or_signs
from reward_servers.text.words import stem

RougeType = Literal["rouge1", "rouge2", "rougeL", "rougeLsum"]
References = Literal["first", "best"]
Tokenizer = Literal["unicode", "rouge_score"]
Words = Sequence[str]


class Rouge(Settings):
    """One kind of ROUGE, as a metric all four; of several references the best one counts, or only the first.

    Words are those of any script, see `reward_servers/text/scripts.py`; for plain English they are those of
    the package rouge-score. With `tokenizer=rouge_score` they are so for every text: runs of a to z, digits.
    Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (ACL 2004).
    """

    needs_references: ClassVar[bool] = True

    rouge_type: RougeType | None = None  # None: rougeL as a reward, all four as a metric
    references: References = "best"
    tokenizer: Tokenizer = "unicode"

    def score(self, samples: Sequence[Sample]) -> list[float]:
        kind: RougeType = self.rouge_type or "rougeL"
        return [rouge_f1(sample, (kind,), self.references, self.tokenizer)[kind] for sample in samples]

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        kinds: tuple[RougeType, ...] = (self.rouge_type,) if self.rouge_type else get_args(RougeType)
        rows = [rouge_f1(sample, kinds, self.references, self.tokenizer) for sample in samples]
        return {f"lexical/rouge_{kind}": mean_of([row[kind] for row in rows]) for kind in kinds}


def rouge_f1(
    sample: Sample, rouge_types: tuple[RougeType, ...], references: References, tokenizer: Tokenizer
) -> dict[str, float]:
    """Return F1 by kind of ROUGE; each kind chooses its best reference.

    Raises:
        InputError: the sample has no reference, or one of which the tokenizer sees nothing.
    """
    targets = references_of(sample, "rouge")
    targets = targets[:1] if references == "first" else targets
    if tokenizer == "rouge_score":
        for target in targets:
            check_latin(target, "rouge with tokenizer=rouge_score", "tokenizer=unicode")
    pairs = [rouge_of_pair(target, sample.text, rouge_types, tokenizer) for target in targets]
    return {rouge_type: max(pair[rouge_type] for pair in pairs) for rouge_type in rouge_types}


def rouge_of_pair(
    target: str, text: str, rouge_types: tuple[RougeType, ...], tokenizer: Tokenizer
) -> dict[str, float]:
    """Return F1 by kind of ROUGE, equal to rouge-score's on the same words.

    That package counts the n-grams. Its subsequences take minutes and gigabytes for long texts, so this
    module finds them.
    """
    ngrams = tuple(kind for kind in rouge_types if kind in ("rouge1", "rouge2"))
    scores = {kind: score.fmeasure for kind, score in _scorer(ngrams, tokenizer).score(target, text).items()}
    if "rougeL" in rouge_types:
        left, right = rouge_words(target, tokenizer), rouge_words(text, tokenizer)
        scores["rougeL"] = f1(common_length(left, right), len(right), len(left))
    if "rougeLsum" in rouge_types:
        left_lines, right_lines = _lines(target, tokenizer), _lines(text, tokenizer)
        scores["rougeLsum"] = f1(
            num_summary_hits(left_lines, right_lines), sum(map(len, right_lines)), sum(map(len, left_lines))
        )
    return {kind: float(value) for kind, value in scores.items()}


def num_summary_hits(target: Sequence[Words], text: Sequence[Words]) -> int:
    """Count the target's words that lie in a common subsequence with any sentence of the text.

    A word counts at most as often as the text has it. Section 3.2 of Lin (2004), as ROUGE-1.5.5 counts it.
    """
    left = Counter(word for sentence in text for word in sentence)
    holders: dict[str, list[tuple[str, ...]]] = {}  # word to the text's different sentences with it
    for other in dict.fromkeys(map(tuple, text)):
        for word in set(other):
            holders.setdefault(word, []).append(other)
    hits = 0
    for sentence in target:
        for place in sorted(_union(sentence, holders)):
            if left[sentence[place]] > 0:
                left[sentence[place]] -= 1
                hits += 1
    return hits


def _union(sentence: Words, holders: Mapping[str, Sequence[tuple[str, ...]]]) -> set[int]:
    """Return the positions that lie in a common subsequence with any other sentence.

    A position is looked for only in sentences that hold its word, and only until it is found.
    """
    union: set[int] = set()
    tried: set[tuple[str, ...]] = set()
    for place, word in enumerate(sentence):
        for other in holders.get(word, ()):
            if place in union:
                break
            if other not in tried:
                tried.add(other)
                union.update(common_positions(sentence, other))
    return union


def f1(hits: float, num_text: float, num_target: float) -> float:
    """Return the harmonic mean of precision and recall.

    >>> f1(2, num_text=4, num_target=3)  # 2 · (1/2 · 2/3) / (1/2 + 2/3)
    0.5714285714285715
    """
    if not hits:
        return 0.0
    precision, recall = hits / num_text, hits / num_target
    return 2 * precision * recall / (precision + recall)


@lru_cache(maxsize=1024)
def rouge_words(text: str, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the words; those of a to z and digits are stemmed if they are longer than three letters."""
    if tokenizer == "rouge_score":
        from rouge_score.tokenize import tokenize  # brings NLTK along: 1 s

        return tuple(tokenize(text, _Stems))
    return _stemmed(words_or_signs(text))


def _lines(text: str, tokenizer: Tokenizer) -> list[tuple[str, ...]]:
    """Return the words of each line; signs are words only where the whole text has no others."""
    lines = text.split("\n")
    if tokenizer == "unicode" and words_of(text):
        return [_stemmed(words_of(line)) for line in lines]
    return [rouge_words(line, tokenizer) for line in lines]


def _stemmed(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(stem(word) if len(word) > 3 and word.isascii() else word for word in words)


class _Stems:
    """A cached stemmer with rouge-score's interface."""

    stem = staticmethod(stem)


@dataclass(frozen=True)
class _Words:
    """A cached tokenizer with rouge-score's interface."""

    tokenizer: Tokenizer

    def tokenize(self, text: str) -> tuple[str, ...]:
        return rouge_words(text, self.tokenizer)


@cache
def _scorer(rouge_types: tuple[RougeType, ...], tokenizer: Tokenizer) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(rouge_types), tokenizer=_Words(tokenizer))
