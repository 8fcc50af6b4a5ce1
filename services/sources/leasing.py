"""Turn prompts into leases (numbered, seeded tasks for workers), in an order that a resumed run continues."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from contracts.rollout import Lease, Prompt, Rollout, Sampling
from services.sources.prompt_order import Order, PromptOrder, scaled
from services.tokens.prompt_tokens import ToTokens

EVALUATION = 2**48  # ids of evaluation leases start here, above those of training


class LeaseSource:
    """Source of leases of the training prompts, `group_size` for each.

    Example: with a group size of 2, `lease(1)` gives leases 0 and 1, both of group 0 and one prompt.

    Prompts are drawn in proportion to their weight to the power of `priority_scale`. With a scale of 0, each
    epoch takes every prompt once. Another `order` replaces this one.

    Prompts are in flight from `lease` to `finish`. The state names them, so that a resumed run leases the
    same ones again, whatever the order has learned since.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        to_tokens: ToTokens,
        sampling: Sampling,
        *,
        group_size: int,
        seed: int,
        priority_scale: float = 0.0,
        order: Order | None = None,
    ) -> None:
        self._prompts, self._to_tokens, self._sampling = prompts, to_tokens, sampling
        self._group_size, self._seed = group_size, seed
        self._order = order or PromptOrder(len(prompts), seed, weights=weights_of(prompts, priority_scale))
        self._next_id = 0
        self._in_flight: deque[int] = deque()  # indices of prompts, oldest first
        self._again: deque[int] = deque()  # those that were in flight in a restored state

    def lease(self, num_prompts: int) -> list[Lease]:
        taken = [self._again.popleft() for _ in range(min(num_prompts, len(self._again)))]
        taken += self._order.next(num_prompts - len(taken))
        self._in_flight += taken
        return [self._next(index) for index in taken for _ in range(self._group_size)]

    def finish(self, num_prompts: int, rollouts: Sequence[Rollout]) -> None:
        """Take the oldest prompts in flight for done, and learn from their scored rollouts."""
        first = self._next_id // self._group_size - len(self._in_flight)
        rewards: dict[int, list[float]] = {}
        for rollout in rollouts:
            rewards.setdefault(rollout.group, []).append(rollout.total_reward)
        for group in range(first, first + num_prompts):
            self._order.learn(self._in_flight.popleft(), rewards.get(group, []))

    def metrics(self) -> dict[str, float]:
        """Return numbers about the order of prompts."""
        return self._order.metrics()

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
        next_id = self._next_id - len(self._in_flight) * self._group_size
        in_flight = [*self._in_flight, *self._again]
        return {"order": self._order.state(), "next_id": next_id, "in_flight": in_flight}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._order.restore(state["order"])
        self._next_id = int(state["next_id"])
        self._in_flight.clear()
        self._again = deque(state.get("in_flight", ()))  # older states stand before what was in flight


def weights_of(prompts: Sequence[Prompt], priority_scale: float) -> list[float] | None:
    """Return the prompts' weights to the power of `priority_scale`; None for 0: all weights are equal."""
    return scaled([prompt.weight for prompt in prompts] if priority_scale else (), priority_scale)


def evaluation_leases(
    prompts: Sequence[Prompt], to_tokens: ToTokens, sampling: Sampling, *, samples: int, seed: int
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
