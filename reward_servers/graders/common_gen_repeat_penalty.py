"""Penalty of -1 if the text repeats its task (the list of concepts, or the instruction's words), else 0."""

from collections.abc import Sequence
from typing import ClassVar

from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.graders.coverage import concepts_of

INSTRUCTION_WORDS = ("generate", "sentence")


class CommonGenRepeatPenalty(Settings):
    """RL4LMs' penalty for CommonGen, to be added to another reward.

    Four things must not occur, in any letter case and with any blanks: the concepts in a row, as the prompt
    lists them or separated by blanks; the prompt's words before its list; "generate"; "sentence".
    """

    needs_meta: ClassVar[tuple[str, ...]] = ("concepts",)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [-1.0 if self.repeats(sample) else 0.0 for sample in samples]

    def repeats(self, sample: Sample) -> bool:
        concepts = concepts_of(sample, "common_gen_repeat_penalty")
        instruction, listed = task_of(sample.prompt, concepts)
        phrases = list(INSTRUCTION_WORDS)
        if not instruction.strip().isalpha():  # "with" alone says nothing
            phrases.append(instruction)
        if len(concepts) > 1:  # the text should hold a single concept
            phrases += [listed, " ".join(concepts)]
        text = _plain(sample.text)
        return any(phrase in text for phrase in map(_plain, phrases) if phrase)


def task_of(prompt: str, concepts: Sequence[str]) -> tuple[str, str]:
    """Return a prompt's words before its list of concepts, and that list without its end, in lower case.

    The concepts locate the list, so that prefix, separator and end token need not be known. A prompt that
    does not name them all in order gives two empty texts.

    >>> task_of("Generate a sentence with: field look stand.", ["field", "look", "stand"])
    ('generate a sentence with: ', 'field look stand')
    >>> task_of("summarize: field.look.stand ", ["field", "look", "stand"])
    ('summarize: ', 'field.look.stand')
    """
    lowered, end = prompt.lower(), 0
    start = len(lowered)
    for concept in reversed(concepts):
        start = lowered.rfind(concept.lower(), 0, start)
        if start < 0:
            return "", ""
        end = end or start + len(concept)
    return (lowered[:start], lowered[start:end]) if concepts else ("", "")


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
