"""The cache of a replica's answers, so that the same text for the same prompt is graded once.

call ──▶ known? ──▶ answered at once
            └─ the rest ──▶ batches ──▶ grader ──▶ remembered
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from contracts.scores import Sample
from reward_servers.server import Answer

# Answers, and the number of them that came from the cache.
Scored = tuple[list[Answer], int]
# A digest, or the index in the call for a sample without one.
Key = bytes | int


class AnswerCache:
    """A cache in front of `score`, which then grades only new samples.

    It is for graders whose answer depends on the sample alone. The key covers everything that an answer
    depends on: text, prompt, references and meta data. Of `size` answers, the least recently used is dropped
    first; 0 keeps none. A failure is not kept, since a retry may succeed. Each object belongs to one event
    loop.

    The group is not in the key: it says which samples belong together. The answer of a grader that reads it
    depends on the other samples of the batch; once that happens, nothing is cached any more.

    Args:
        reads_groups: returns whether the grader has read a group; called after each call.
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
        """Return an answer for each sample, in order; grade a sample that occurs twice only once."""
        if self._size == 0:
            return await self._score(samples), 0
        keys: list[Key] = [key_of(sample) or index for index, sample in enumerate(samples)]
        answers = {key: self._answers[key] for key in keys if key in self._answers}
        fresh = {key: sample for key, sample in zip(keys, samples, strict=True) if key not in answers}
        if fresh:
            graded = await self._score(list(fresh.values()))
            if self._reads_groups():  # it must see whole calls, now and later
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
    """Return a 16-byte key of all that an answer depends on; None if the meta data doesn't fit JSON.

    >>> key_of(Sample("a")) == key_of(Sample("a", group="train/1")) != key_of(Sample("a", references=("a",)))
    True
    """
    try:
        shown = json.dumps([sample.text, sample.prompt, sample.references, dict(sample.meta)])
    except (TypeError, ValueError):
        return None
    return hashlib.blake2b(shown.encode("ascii"), digest_size=16).digest()
