"""Curricula as users write them: one that is simple, and one whose every choice depends on all that was."""

import random
import zlib
from collections.abc import Sequence
from typing import Any

from whetstone import Prompt


class Retire:
    """Asks no prompt again whose answers earned nothing `after` times."""

    def __init__(self, after: int = 1) -> None:
        self.after = after
        self.failures: dict[str, int] = {}

    def choose(self, prompts: Sequence[Prompt], count: int, rng: Any) -> list[str]:
        ids = [prompt.id for prompt in prompts]
        left = [id_ for id_ in ids if self.failures.get(id_, 0) < self.after] or ids
        return list(rng.choice(left, size=count, replace=len(left) < count))

    def observe(self, prompt: Prompt, scores: Sequence[float]) -> None:
        if max(scores) <= 0:
            self.failures[prompt.id] = self.failures.get(prompt.id, 0) + 1

    def state(self) -> Any:
        return self.failures  # the very object, which goes on to change

    def load_state(self, state: Any) -> None:
        self.failures = state

    def metrics(self) -> dict[str, float]:
        return {"retired": sum(times >= self.after for times in self.failures.values())}


class Walk:
    """Chooses by a checksum of all choices and scores so far, and by a generator of its own."""

    def __init__(self) -> None:
        self.random, self.past, self.observed, self.chosen = random.Random(5), 0, 0, 0

    def choose(self, prompts: Sequence[Prompt], count: int, rng: Any) -> list[str]:
        drawn = []
        for _ in range(count):
            step = self.random.randrange(1 << 20) + int(rng.integers(1 << 20)) + self.past
            drawn.append(prompts[step % len(prompts)].id)
            self.past = zlib.crc32(drawn[-1].encode(), self.past)
        self.chosen += count
        return drawn

    def observe(self, prompt: Prompt, scores: Sequence[float]) -> None:
        self.observed += 1
        self.past = zlib.crc32(f"{prompt.id} {scores}".encode(), self.past)

    def state(self) -> Any:
        version, words, gauss = self.random.getstate()
        return {
            "random": [version, list(words), gauss],
            "past": self.past,
            "observed": self.observed,
            "chosen": self.chosen,
        }

    def load_state(self, state: Any) -> None:
        version, words, gauss = state["random"]
        self.random.setstate((version, tuple(words), gauss))
        self.past, self.observed, self.chosen = state["past"], state["observed"], state["chosen"]
