"""In which order prompts are trained on: endless, seeded, and resumable at any point."""

from collections.abc import Mapping

import numpy as np


class PromptOrder:
    """Epoch e goes through all prompts in a permutation drawn from (seed, e) alone.

    So the place in the order is one number, and a resumed run gives exactly the rest.

    Example:

        >>> order = PromptOrder(prompts_count=3, seed=7)
        >>> first, second = order.next(3), order.next(3)
        >>> sorted(first) == sorted(second) == [0, 1, 2]
        True
        >>> PromptOrder(prompts_count=3, seed=7, start=3).next(3) == second
        True
    """

    def __init__(self, prompts_count: int, seed: int, start: int = 0) -> None:
        if prompts_count < 1:
            raise ValueError(f"an order needs at least one prompt, got {prompts_count}")
        self._count = prompts_count
        self._seed = seed
        self._position = start
        self._epoch = -1
        self._permutation: list[int] = []

    @classmethod
    def from_state(cls, state: Mapping[str, int]) -> "PromptOrder":
        return cls(state["prompts_count"], state["seed"], state["position"])

    def state(self) -> dict[str, int]:
        return {"prompts_count": self._count, "seed": self._seed, "position": self._position}

    def next(self, n: int) -> list[int]:
        """The next `n` prompts, as indices below `prompts_count`; goes on into the next epoch."""
        return [self._take() for _ in range(n)]

    def _take(self) -> int:
        epoch, offset = divmod(self._position, self._count)
        if epoch != self._epoch:
            generator = np.random.default_rng(np.random.SeedSequence((self._seed, epoch)))
            self._permutation = generator.permutation(self._count).tolist()
            self._epoch = epoch
        self._position += 1
        return self._permutation[offset]
