"""Order of a mixture's prompts. Quotas choose the next part, and each part orders its own prompts."""

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.runs.part_names import named
from services.training.sources.own_order import OwnOrder
from services.training.sources.prompt_order import PromptOrder
from services.training.sources.quotas import Quotas


@dataclass(frozen=True, slots=True)
class OrderedPart:
    """One part of a mixture: its weight, its order, and the indices of its prompts in the mixture.

    Example: a part with every other prompt: `OrderedPart(3.0, PromptOrder(2, seed=7), places=[0, 2])`
    """

    weight: float
    order: PromptOrder | OwnOrder
    places: Sequence[int]


class MixtureOrder:
    """Order that takes prompts from its parts in proportion to their weights.

    Example:

        >>> both = enumerate("ab")
        >>> both = {name: OrderedPart(1.0, PromptOrder(1, seed=0), [place]) for place, name in both}
        >>> MixtureOrder(both).next(4)
        [0, 1, 0, 1]
    """

    def __init__(self, parts: Mapping[str, OrderedPart]) -> None:
        self._parts = parts
        self._names = list(parts)
        self._quotas = Quotas([part.weight for part in parts.values()])
        self._owners = {
            place: (name, row) for name, part in parts.items() for row, place in enumerate(part.places)
        }

    def next(self, n: int) -> list[int]:
        drawn = [self._names[self._quotas.next()] for _ in range(n)]
        rows = {name: iter(self._parts[name].order.next(count)) for name, count in Counter(drawn).items()}
        return [self._parts[name].places[next(rows[name])] for name in drawn]

    def learn(self, index: int, rewards: Sequence[float]) -> None:
        name, row = self._owners[index]
        self._parts[name].order.learn(row, rewards)

    def metrics(self) -> dict[str, float]:
        """Return each part's number of drawn prompts, its epochs, and its order's metrics."""
        metrics: dict[str, float] = {}
        for (name, part), drawn in zip(self._parts.items(), self._quotas.counts, strict=True):
            of_part = {"drawn": float(drawn), "epochs": part.order.epochs, **part.order.metrics()}
            metrics |= named(name, of_part)
        return metrics

    def state(self) -> dict[str, Any]:
        orders = {name: part.order.state() for name, part in self._parts.items()}
        return {"drawn": list(self._quotas.counts), "parts": orders}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._quotas.counts = list(state["drawn"])
        for name, part in self._parts.items():
            part.order.restore(state["parts"][name])


def seed_of(run_seed: int, part: str) -> int:
    """Return the seed of a part's order. It depends on no other part."""
    seeds = np.random.SeedSequence((run_seed, zlib.crc32(part.encode()))).generate_state(1)
    return int(seeds[0])
