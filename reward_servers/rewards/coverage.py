"""Share of the wanted concepts that occur in the text, in any form (0 to 1)."""

import re
from collections.abc import Sequence
from typing import ClassVar

from contracts.errors import InputError
from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.text import wordnet
from reward_servers.text.words import stem

WORD = re.compile(r"[^\W_]+")


class Coverage(Settings):
    """The concepts are the words of the sample's meta data `concepts`, as CommonGen has them.

    A concept occurs if a word has its stem, or is an irregular form of it ("ran" for "run"). Lin et al.,
    "CommonGen: A Constrained Text Generation Challenge for Generative Commonsense Reasoning" (2020).
    """

    needs_meta: ClassVar[tuple[str, ...]] = ("concepts",)
    requires: ClassVar[tuple[str, ...]] = ("wordnet",)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [share_covered(sample.text, concepts_of(sample, "coverage")) for sample in samples]


def concepts_of(sample: Sample, name: str) -> tuple[str, ...]:
    """The sample's concepts.

    Raises:
        InputError: it has none, or something else than a list of words.
    """
    found = sample.meta.get("concepts")
    if isinstance(found, list | tuple) and all(isinstance(concept, str) for concept in found):
        return tuple(found)
    raise InputError(
        f"{name} wants meta data 'concepts', a list of words such as ['dog', 'run']; got {found!r}"
    )


def share_covered(text: str, concepts: Sequence[str]) -> float:
    """1 when nothing is wanted. A concept of several words occurs if all of them do.

    >>> share_covered("Two dogs ran.", ["dog", "run", "frisbee", "park"])
    0.5
    """
    stems = {form for word in WORD.findall(text.lower()) for form in _stems(word)}
    found = [all(stem(word) in stems for word in WORD.findall(concept.lower())) for concept in concepts]
    return sum(found) / len(found) if found else 1.0


def _stems(word: str) -> list[str]:
    return [stem(word), *map(stem, wordnet.irregular_bases(word))]
