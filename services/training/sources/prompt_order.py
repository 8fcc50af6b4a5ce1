"""Order in which a run trains on its prompts: endless, seeded, and resumable at any point."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from contracts.errors import InputError
from services.training.sources.curriculum import PassRates


class Order(Protocol):
    """Order in which a run takes its prompts."""

    def next(self, n: int) -> list[int]:
        """Return the next `n` prompts as indices."""
        ...

    def learn(self, index: int, rewards: Sequence[float]) -> None:
        """Record the rewards of a prompt's answers."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return metrics of the order, for the run's logs."""
        ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class PromptOrder:
    """Order of prompts in which epoch e is a permutation drawn only from (seed, e).

    Its position is one number, so a resumed run continues exactly. With weights, an epoch consists of
    `prompts_count` independent draws instead, with replacement and in proportion to the weights. With pass
    rates, a random number from (seed, e) decides whether a prompt is skipped in this epoch.

    Example:

        >>> order = PromptOrder(prompts_count=3, seed=7)
        >>> first, second = order.next(3), order.next(3)
        >>> sorted(first) == sorted(second) == [0, 1, 2]
        True
        >>> PromptOrder(prompts_count=3, seed=7, start=3).next(3) == second
        True
        >>> PromptOrder(prompts_count=3, seed=7, weights=[0, 1, 0]).next(3)
        [1, 1, 1]
    """

    def __init__(
        self,
        prompts_count: int,
        seed: int,
        start: int = 0,
        weights: Sequence[float] | None = None,
        rates: PassRates | None = None,
    ) -> None:
        if prompts_count < 1:
            raise ValueError(f"an order needs at least one prompt, got {prompts_count}")
        self._count = prompts_count
        self._seed = seed
        self._position = start
        self._epoch = -1
        self._indices: list[int] = []  # order of the epoch's prompts
        self._chances: list[float] = []  # chances of the epoch's prompts, with pass rates
        self._rates = rates
        self._probabilities = None if weights is None else _probabilities(weights, prompts_count)

    @classmethod
    def from_state(cls, state: Mapping[str, Any], weights: Sequence[float] | None = None) -> "PromptOrder":
        order = cls(state["prompts_count"], state["seed"], weights=weights)
        order.restore(state)
        return order

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "prompts_count": self._count,
            "seed": self._seed,
            "position": self._position,
        }
        return state if self._rates is None else state | {"curriculum": self._rates.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from another order's state.

        Raises:
            InputError: the number of prompts has changed.
        """
        expect_count(state, self._count)
        self._seed = state["seed"]
        self._position, self._epoch = state["position"], -1
        if self._rates is not None:
            self._rates.restore(state.get("curriculum", {}))

    def next(self, n: int) -> list[int]:
        """Return the next `n` prompts as indices below `prompts_count`; continue into the next epoch."""
        return [self._take() for _ in range(n)]

    def learn(self, index: int, rewards: Sequence[float]) -> None:
        """Update a prompt's pass rate with the rewards of its answers, if pass rates are kept."""
        if self._rates is not None and rewards:
            self._rates.learn(index, rewards)

    def metrics(self) -> dict[str, float]:
        return {} if self._rates is None else self._rates.metrics()

    @property
    def epochs(self) -> float:
        """Return how many epochs have passed.

        >>> order = PromptOrder(prompts_count=4, seed=7)
        >>> order.next(6) and order.epochs
        1.5
        """
        return self._position / self._count

    def _take(self) -> int:
        index, chance = self._pass()
        while self._rates is not None and chance >= self._rates.share(index):
            index, chance = self._pass()
        return index

    def _pass(self) -> tuple[int, float]:
        """Advance by one prompt; return its index, and its random number in this epoch."""
        epoch, offset = divmod(self._position, self._count)
        if epoch != self._epoch:
            generator = np.random.default_rng(np.random.SeedSequence((self._seed, epoch)))
            if self._probabilities is None:
                indices = generator.permutation(self._count)
            else:
                indices = generator.choice(self._count, size=self._count, p=self._probabilities)
            self._indices = indices.tolist()
            self._chances = generator.random(self._count).tolist() if self._rates is not None else []
            self._epoch = epoch
        self._position += 1
        return self._indices[offset], self._chances[offset] if self._chances else 0.0


def expect_count(state: Mapping[str, Any], count: int) -> None:
    """Reject the state of an order with another number of prompts.

    Raises:
        InputError: the numbers differ.
    """
    if state["prompts_count"] != count:
        raise InputError(
            f"the run began with {state['prompts_count']} training prompts, but now has {count}. Restore the "
            "data with which the run began, or choose another run_name= for a new run"
        )


def scaled(weights: Sequence[float], scale: float) -> list[float] | None:
    """Return each weight to the power of `scale`, as RL4LMs' sampler does; None for 0, with equal weights.

    >>> scaled([1, 4], 0.5)
    [1.0, 2.0]

    Raises:
        InputError: a weight is below 0 or not finite.
    """
    if scale == 0:
        return None
    for index, weight in enumerate(weights):
        if not 0 <= weight < np.inf:
            raise InputError(
                f"rollout.priority_scale={scale}: the weight of prompt {index} is {weight}; expected a "
                f"number of at least 0"
            )
    with np.errstate(over="ignore"):  # `_probabilities` rejects an overflow
        powers: list[float] = (np.asarray(weights, dtype=np.float64) ** scale).tolist()
    return powers


def _probabilities(weights: Sequence[float], count: int) -> np.ndarray:
    if len(weights) != count:
        raise ValueError(f"expected a weight for each of {count} prompts, got {len(weights)}")
    whole = np.asarray(weights, dtype=np.float64)
    largest = whole.max()
    if not largest > 0 or not np.isfinite(largest):
        raise InputError(
            "rollout.priority_scale: no prompt has a weight above 0, or a scaled weight overflows; "
            "rollout.priority_scale=0 takes all prompts equally"
        )
    whole = whole / largest  # so that no sum overflows
    return whole / whole.sum()
