"""Score of 1 if the text equals one of its references, else 0."""

import re
import string
from collections.abc import Sequence
from typing import ClassVar

from contracts.scores import Sample
from reward_servers.answers.answer import response_part
from reward_servers.graders.grader import Grader
from reward_servers.text.references import references_of

ARTICLE = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


class ExactMatch(Grader):
    """Equality of texts without the blanks around them, the thought, and the tags of an `<answer>`.

    With `normalize`, letter case, punctuation, articles and the number of blanks don't count either, as in
    Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (EMNLP 2016).
    """

    key: ClassVar[str] = "lexical/exact_match"
    needs_references: ClassVar[bool] = True

    normalize: bool = False

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [self.of_sample(sample) for sample in samples]

    def of_sample(self, sample: Sample) -> float:
        answer = self._answer(sample.response)
        references = references_of(sample, "exact_match")
        return float(answer is not None and answer in map(self._answer, references))

    def answer(self, text: str) -> str | None:
        """Return the answer in a text, in the form in which answers are compared; None if it has none."""
        return self._answer(text) or None

    def _answer(self, text: str) -> str | None:
        part = response_part(text)
        return normalized(part) if part is not None and self.normalize else part


def normalized(text: str) -> str:
    """Return the words in lower case, without punctuation and articles; a text of nothing else as it is.

    >>> normalized("The  U.S. Army!"), normalized(" ?! ")
    ('us army', '?!')
    """
    return " ".join(ARTICLE.sub(" ", text.lower().translate(PUNCTUATION)).split()) or text.strip()
