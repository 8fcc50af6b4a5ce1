"""Share of the required concepts that occur in the text, in any form (0 to 1)."""

from collections.abc import Sequence
from typing import ClassVar

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.graders.grader import Grader
from reward_servers.text import wordnet
from reward_servers.text.scripts import spaced, words_of
from reward_servers.text.words import stem


class Coverage(Grader):
    """Coverage of the words in the sample's meta data `concepts`, as in CommonGen.

    A concept occurs if a word has its stem, or is an irregular form of it ("ran" for "run"), or as it stands
    where its script has no blanks. Lin et al.,
    "CommonGen: A Constrained Text Generation Challenge for Generative Commonsense Reasoning" (2020).
    """

    key: ClassVar[str] = "lexical/coverage"
    needs_meta: ClassVar[tuple[str, ...]] = ("concepts",)
    requires: ClassVar[tuple[str, ...]] = ("wordnet",)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [share_covered(sample.text, concepts_of(sample, "coverage")) for sample in samples]


def concepts_of(sample: Sample, name: str) -> tuple[str, ...]:
    """Return the sample's concepts.

    Raises:
        InputError: the meta data have no `concepts`, or the value is no list of words.
    """
    concepts = sample.meta.get("concepts")
    if isinstance(concepts, list | tuple) and all(isinstance(concept, str) for concept in concepts):
        return tuple(concepts)
    raise InputError(
        f"{name} needs meta data 'concepts', a list of words such as ['dog', 'run']; got {concepts!r}"
    )


def share_covered(text: str, concepts: Sequence[str]) -> float:
    """Return the share of concepts in the text; 1 without concepts. All words of a concept must occur.

    >>> share_covered("Two dogs ran.", ["dog", "run", "frisbee", "park"])
    0.5
    """
    stems = {form for word in words_of(text) for form in _stems(word)}
    covered = [
        concept.strip().casefold() in text.casefold()
        if spaced(concept) != concept or not words_of(concept)
        else all(stem(word) in stems for word in words_of(concept))
        for concept in concepts
    ]
    return sum(covered) / len(covered) if covered else 1.0


def _stems(word: str) -> list[str]:
    return [stem(word), *map(stem, wordnet.irregular_bases(word))]
