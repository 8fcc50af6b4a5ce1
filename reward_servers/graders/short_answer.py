"""Closeness of the answer to one sentence of `words` words (0 to 1); halved if it has no key word."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.graders.coverage import share_covered
from reward_servers.graders.length import closeness, num_words
from reward_servers.text.sentences import sentences

ENDS = (".", "!", "?")


class ShortAnswer(Settings):
    """1 for a whole sentence of `words` words with a key word, falling to 0 at no words and at twice as many.

    The meta data's `key_words` are those of right answers; one of them in any form is enough. A text that is
    cut off or has a second sentence earns 0.
    """

    needs_meta: ClassVar[tuple[str, ...]] = ("key_words",)
    requires: ClassVar[tuple[str, ...]] = ("wordnet",)

    words: int = Field(default=10, ge=1)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [self._score(sample.text, sample.meta["key_words"]) for sample in samples]

    def _score(self, text: str, key_words: Sequence[str]) -> float:
        if not is_one_sentence(text):
            return 0.0
        is_right = share_covered(text, key_words) > 0
        return closeness(num_words(text), self.words) * (1.0 if is_right else 0.5)


def is_one_sentence(text: str) -> bool:
    """Return whether the text is one sentence, with its end.

    >>> [is_one_sentence(text) for text in ("Cows eat grass.", "Cows eat grass. They", "Cows eat")]
    [True, False, False]
    """
    return len(sentences(text)) == 1 and text.rstrip().endswith(ENDS)
