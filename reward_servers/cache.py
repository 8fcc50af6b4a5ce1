"""Answers that a replica remembers, so that the same text for the same prompt is graded once.

call ──▶ known? ──▶ answered at once
            └─ the rest ──▶ batches ──▶ grader ──▶ remembered
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from contracts.scores import Sample
from reward_servers.server import Answer

# Answers, and how many of them needed no grading.
Scored = tuple[list[Answer], int]
# A digest; a sample that has none is known by its place in the call alone.
Key = bytes | int


class AnswerCache:
    """Stands before `score` and asks it only for samples that it has not answered before.

    The key is everything that an answer depends on: text, prompt, references and meta data. Of `size`
    answers, the one that was asked for longest ago is forgotten first; 0 keeps none. What failed is not
    kept: it may do better next time. For graders whose answer depends on nothing but the sample. Lives on one
    event loop.

    The group is not in the key: it says which samples belong together, and a grader that looks at it depends
    on the others of its batch. From then on nothing is kept.

    Args:
        reads_groups: whether the grader has looked at a group, asked behind each call.
    """

    def __init__(
        self,
        score: Callable[[Sequence[Sample]], Awaitable[list[Answer]]],
        size: int,
        reads_groups: Callable[[], bool] = lambda: False,
    ) -> None:
        self._score = score
        self._size = size
        self._reads_groups = reads_groups
        self._answers: OrderedDict[Key, Answer] = OrderedDict()

    async def score(self, samples: Sequence[Sample]) -> Scored:
        """An answer a sample, in order; a sample that occurs twice in the call is graded once."""
        if self._size == 0:
            return await self._score(samples), 0
        keys: list[Key] = [key_of(sample) or index for index, sample in enumerate(samples)]
        answers = {key: self._answers[key] for key in keys if key in self._answers}
        fresh = {key: sample for key, sample in zip(keys, samples, strict=True) if key not in answers}
        if fresh:
            graded = await self._score(list(fresh.values()))
            if self._reads_groups():  # then nothing is to be left out of a call, now or later
                self._size = 0
                return await self._score(samples), 0
            answers.update(zip(fresh, graded, strict=True))
        for key, answer in answers.items():
            self._keep(key, answer)
        return [answers[key] for key in keys], len(samples) - len(fresh)

    def _keep(self, key: Key, answer: Answer) -> None:
        score, _ = answer
        if score is None or isinstance(key, int):
            return
        self._answers[key] = answer
        self._answers.move_to_end(key)
        if len(self._answers) > self._size:
            self._answers.popitem(last=False)


def key_of(sample: Sample) -> bytes | None:
    """16 bytes for all that an answer depends on; None where meta data holds what JSON can't.

    >>> key_of(Sample("a")) == key_of(Sample("a", group="train/1")) != key_of(Sample("a", references=("a",)))
    True
    """
    try:
        shown = json.dumps([sample.text, sample.prompt, sample.references, dict(sample.meta)])
    except (TypeError, ValueError):
        return None
    return hashlib.blake2b(shown.encode("ascii"), digest_size=16).digest()
