"""Turn prompts into leases (numbered, seeded tasks for workers), in an order that a resumed run continues."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from contracts.rollout import Lease, Prompt, Sampling
from services.sources.prompt_order import PromptOrder, scaled
from services.tokens.prompt_tokens import PromptTokens

EVALUATION = 2**48  # ids of evaluation leases start here, above those of training


class LeaseSource:
    """Source of leases of the training prompts, `group_size` for each.

    Example: with a group size of 2, `lease(1)` gives leases 0 and 1, both of group 0 and one prompt.

    Prompts are drawn in proportion to their weight to the power of `priority_scale`. With a scale of 0, each
    epoch takes every prompt once.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        to_tokens: PromptTokens,
        sampling: Sampling,
        *,
        group_size: int,
        seed: int,
        priority_scale: float = 0.0,
    ) -> None:
        self._prompts, self._to_tokens, self._sampling = prompts, to_tokens, sampling
        self._group_size, self._seed = group_size, seed
        weights = [prompt.weight for prompt in prompts] if priority_scale else ()
        self._weights = scaled(weights, priority_scale)
        self._order = PromptOrder(len(prompts), seed, weights=self._weights)
        self._next_id = 0

    def lease(self, num_prompts: int) -> list[Lease]:
        return [
            self._next(prompt) for prompt in self._order.next(num_prompts) for _ in range(self._group_size)
        ]

    def _next(self, index: int) -> Lease:
        prompt, lease_id = self._prompts[index], self._next_id
        self._next_id += 1
        return Lease(
            id=lease_id,
            prompt=prompt,
            tokens=self._to_tokens(prompt),
            group=lease_id // self._group_size,
            seed=lease_seed(self._seed, lease_id),
            sampling=self._sampling,
        )

    def state(self) -> dict[str, Any]:
        return {"order": self._order.state(), "next_id": self._next_id}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._order = PromptOrder.from_state(state["order"], self._weights)
        self._next_id = int(state["next_id"])


def evaluation_leases(
    prompts: Sequence[Prompt], to_tokens: PromptTokens, sampling: Sampling, *, samples: int, seed: int
) -> list[Lease]:
    """Return `samples` leases for each prompt, with the same seeds at every evaluation.

    So differences between two evaluations come from the weights alone.
    """
    return [
        Lease(
            id=EVALUATION + index * samples + k,
            prompt=prompt,
            tokens=to_tokens(prompt),
            group=index,
            seed=lease_seed(seed, EVALUATION + index * samples + k),
            sampling=sampling,
        )
        for index, prompt in enumerate(prompts)
        for k in range(samples)
    ]


def lease_seed(run_seed: int, lease_id: int) -> int:
    """Return a lease's seed, which depends on the run's seed and the lease's id alone."""
    return int(np.random.SeedSequence((run_seed, lease_id)).generate_state(1, np.uint64)[0] >> np.uint64(1))
