"""Rank of each text among the answers to its prompt, as a chat model ranks them, from 0 to 1."""

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from contracts.scores import GROUPS, Sample
from reward_servers.chat_models.asked_model import AskedModel, Malformed, answered
from reward_servers.text.templates import filled

QUESTION = """\
Rank {count} answers of assistants to one prompt by the rubric.

=== The rubric
{rubric}

=== The prompt
{prompt}

{answers}
=== Your judgement
Reply with a JSON object alone: first "reason", one sentence, then "ranking", the numbers of all {count} \
answers from the best to the worst."""
ANSWER = "=== Answer {number}\n{text}\n"


class JudgeGroup(AskedModel):
    """A judge of all answers to a prompt: the best gets 1, the worst 0, the others evenly in between.

    Equal texts share the mean of their ranks and are shown once. A single answer gets 0.5, and the judge is
    not asked. The answers are shown in a shuffled order, which depends on the texts alone. The judge reads
    answers without their thoughts; texts without an answer share the last ranks, unseen.

    Example: of three answers with the ranking [2, 3, 1] the scores are [0.0, 1.0, 0.5].
    """

    scores: ClassVar[str] = GROUPS

    async def score(self, samples: Sequence[Sample]) -> list[float]:
        answers = [sample.text for sample in map(answered, samples)]
        if len(set(answers)) < 2:
            return [0.5 for _ in samples]
        texts = shuffled(set(filter(None, answers)))
        return spread(answers, [*await self._ranked(samples[0], texts), *([""] if "" in answers else [])])

    async def _ranked(self, sample: Sample, texts: Sequence[str]) -> list[str]:
        """Return the texts from the best to the worst."""
        if len(texts) < 2:
            return list(texts)
        question = self.question(sample, texts)
        ranking = await self.verdict(question, form(len(texts)), lambda reply: ranking_of(reply, len(texts)))
        return [texts[number - 1] for number in ranking]

    def question(self, sample: Sample, texts: Sequence[str]) -> str:
        answers = [ANSWER.format(number=number, text=text) for number, text in enumerate(texts, start=1)]
        return QUESTION.format(
            count=len(texts),
            rubric=filled(self.rubric_text(), sample),
            prompt=sample.prompt,
            answers="\n".join(answers),
        )


def form(count: int) -> dict[str, Any]:
    """Return the JSON schema of a ranking of `count` answers."""
    number = {"type": "integer", "minimum": 1, "maximum": count}
    ranking = {"type": "array", "items": number, "minItems": count, "maxItems": count}
    return {
        "type": "object",
        "properties": {"reason": {"type": "string"}, "ranking": ranking},
        "required": ["reason", "ranking"],
        "additionalProperties": False,
    }


def ranking_of(reply: Mapping[str, Any], count: int) -> list[int]:
    """Return the answers' numbers from the best to the worst.

    Raises:
        Malformed: a number is there twice.
    """
    ranking = [int(number) for number in reply["ranking"]]
    if len(set(ranking)) < count:
        raise Malformed(f'"ranking" is {ranking}; expected each number from 1 to {count} once')
    return ranking


def spread(texts: Sequence[str], ranked: Sequence[str]) -> list[float]:
    """Return each text's place among all, from 1 for the best to 0; equal texts share the mean place.

    >>> spread(["a", "b", "b", "c", "d"], ranked=["b", "c", "a", "d"])  # b has the places 0 and 1 of 0 to 4
    [0.25, 0.875, 0.875, 0.5, 0.0]
    """
    last, place, scores = len(texts) - 1, 0, {}
    for text in ranked:
        count = texts.count(text)
        scores[text] = 1.0 - (place + (count - 1) / 2) / last
        place += count
    return [scores[text] for text in texts]


def shuffled(texts: set[str]) -> list[str]:
    """Return the texts in an order that tells nothing about them, and is always the same for them."""
    order = sorted(texts)
    digest = hashlib.blake2b("\0".join(order).encode("utf-8", "backslashreplace"), digest_size=8).digest()
    random.Random(digest).shuffle(order)
    return order
