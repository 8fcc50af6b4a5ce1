"""The cache of a replica's answers, so that the same text for the same prompt is graded once.

call ──▶ known? ──▶ answered at once
            └─ the rest ──▶ batches ──▶ grader ──▶ remembered
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from contracts.scores import Answer, Sample
from reward_servers.groups import by_group

# A digest, or the place in the call for a sample without one.
Key = bytes | int


class AnswerCache:
    """A cache in front of `score`, which then grades only new samples.

    It is for graders whose answer depends on the sample alone. The key covers everything that an answer
    depends on: text, prompt, references, meta data, the number of tokens, the turns. Of `size` answers, the
    least recently used is dropped first; 0 keeps none. A failure is not kept, since a retry may succeed. Each
    object belongs to one event loop.

    The group is not in the key: it says which samples belong together. The answer of a grader that reads it
    depends on the other samples of the batch; once that happens, nothing is cached any more. A grader of
    whole groups gets a group again unless all of its samples are known, in their order.

    Args:
        reads_groups: returns whether the grader has read a group; called after each call.
    """

    def __init__(
        self,
        score: Callable[[Sequence[Sample]], Awaitable[list[Answer]]],
        size: int,
        reads_groups: Callable[[], bool] = lambda: False,
        *,
        whole_groups: bool = False,
    ) -> None:
        self._score = score
        self._size = size
        self._reads_groups = reads_groups
        self._whole_groups = whole_groups
        self._answers: OrderedDict[Key, Answer] = OrderedDict()

    async def score(self, samples: Sequence[Sample]) -> tuple[list[Answer], int]:
        """Return an answer for each sample, in order, and how many were known.

        A sample that occurs twice is graded only once, unless whole groups are graded.
        """
        if self._size == 0:
            return await self._score(samples), 0
        if self._whole_groups:
            return await self._of_groups(samples)
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

    async def _of_groups(self, samples: Sequence[Sample]) -> tuple[list[Answer], int]:
        """Score the groups that are not wholly known."""
        keys: list[Key] = list(range(len(samples)))
        fresh: list[int] = []
        for places in by_group(samples):
            group_keys = _keys_in_group([samples[place] for place in places])
            for place, known in zip(places, group_keys, strict=True):
                keys[place] = place if known is None else known
            fresh += places if any(keys[place] not in self._answers for place in places) else []
        answers = {key: self._answers[key] for key in keys if key in self._answers}
        graded = await self._score([samples[place] for place in fresh]) if fresh else []
        answers.update({keys[place]: answer for place, answer in zip(fresh, graded, strict=True)})
        for key, answer in answers.items():
            self._keep(key, answer)
        return [answers[key] for key in keys], len(samples) - len(fresh)

    def _keep(self, key: Key, answer: Answer) -> None:
        _, error = answer
        if error is not None or isinstance(key, int):
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
        details = (sample.opened, sample.num_tokens, sample.turns)
        shown = json.dumps([sample.text, sample.prompt, sample.references, dict(sample.meta), *details])
    except (TypeError, ValueError):
        return None
    return hashlib.blake2b(shown.encode("ascii"), digest_size=16).digest()


def _keys_in_group(samples: Sequence[Sample]) -> list[bytes | None]:
    """Return a key for each sample that covers its whole group, and its place in there."""
    keys = [key_of(sample) for sample in samples]
    if None in keys:
        return [None for _ in samples]
    whole = b"".join(key for key in keys if key is not None)
    return [
        hashlib.blake2b(whole, digest_size=16, salt=place.to_bytes(8, "little")).digest()
        for place in range(len(samples))
    ]
