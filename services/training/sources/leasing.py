"""Turn prompts into leases (numbered, seeded tasks for workers), in an order that a resumed run continues."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from contracts.rollout import Lease, Prompt, Rollout, Sampling
from services.data.tokens.prompt_tokens import ToTokens
from services.training.sources.prompt_order import Order, PromptOrder, scaled

EVALUATION = 2**48  # first id of evaluation leases, above the ids of training


class LeaseSource:
    """Source of leases of the training prompts, `group_size` for each prompt.

    Example: with a group size of 2, `lease(1)` gives leases 0 and 1, both of group 0 and one prompt.

    Prompts are drawn in proportion to their weight to the power of `priority_scale`. With a scale of 0, each
    epoch takes every prompt once. A given `order` replaces this one.

    Prompts are in flight from `lease` to `finish` or `finish_groups`. The state names them and their groups,
    so that a resumed run leases the same prompts again, whatever the order has learned since.
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
        self._next_group = 0
        self._in_flight: dict[int, int] = {}  # index of the prompt by group, oldest first
        self._again: deque[tuple[int, int]] = deque()  # (group, index) in flight in a restored state

    @property
    def group_size(self) -> int:
        return self._group_size

    def lease(self, num_prompts: int) -> list[Lease]:
        taken = [self._again.popleft() for _ in range(min(num_prompts, len(self._again)))]
        new = self._order.next(num_prompts - len(taken))
        taken += enumerate(new, start=self._next_group)
        self._next_group += len(new)
        self._in_flight |= dict(taken)
        return [
            self._lease(group, index, place) for group, index in taken for place in range(self._group_size)
        ]

    def finish(self, num_prompts: int, rollouts: Sequence[Rollout]) -> None:
        """Mark the oldest prompts in flight as done, and learn from their scored rollouts."""
        self.finish_groups(list(islice(self._in_flight, num_prompts)), rollouts)

    def finish_groups(self, groups: Iterable[int], rollouts: Sequence[Rollout]) -> None:
        """Mark these groups' prompts as done, and learn from their scored rollouts."""
        rewards: dict[int, list[float]] = {}
        for rollout in rollouts:
            rewards.setdefault(rollout.group, []).append(rollout.total_reward)
        for group in groups:
            self._order.learn(self._in_flight.pop(group), rewards.get(group, []))

    def metrics(self) -> dict[str, float]:
        """Return metrics of the order of prompts."""
        return self._order.metrics()

    def _lease(self, group: int, index: int, place: int) -> Lease:
        prompt, lease_id = self._prompts[index], group * self._group_size + place
        return Lease(
            id=lease_id,
            prompt=prompt,
            tokens=self._to_tokens(prompt),
            group=group,
            seed=lease_seed(self._seed, lease_id),
            sampling=self._sampling,
        )

    def state(self) -> dict[str, Any]:
        in_flight = [*self._in_flight.items(), *self._again]
        return {
            "order": self._order.state(),
            "next_id": self._next_group * self._group_size,
            "in_flight": [index for _, index in in_flight],
            "groups": [group for group, _ in in_flight],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._order.restore(state["order"])
        self._next_group = int(state["next_id"]) // self._group_size
        self._in_flight.clear()
        in_flight = state.get("in_flight", ())
        groups = state.get("groups")
        if groups is None:  # an older state was taken before these prompts
            groups = range(self._next_group, self._next_group + len(in_flight))
            self._next_group += len(in_flight)
        self._again = deque(sorted(zip(groups, in_flight, strict=True)))


def weights_of(prompts: Sequence[Prompt], priority_scale: float) -> list[float] | None:
    """Return the prompts' weights to the power of `priority_scale`; None for 0, with equal weights."""
    return scaled([prompt.weight for prompt in prompts] if priority_scale else (), priority_scale)


def evaluation_leases(
    prompts: Sequence[Prompt], to_tokens: ToTokens, sampling: Sampling, *, samples: int, seed: int
) -> list[Lease]:
    """Return `samples` leases for each prompt, with the same seeds at every evaluation.

    So differences between two evaluations come only from the weights.
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
    """Return a lease's seed, which depends only on the run's seed and the lease's id."""
    return int(np.random.SeedSequence((run_seed, lease_id)).generate_state(1, np.uint64)[0] >> np.uint64(1))
