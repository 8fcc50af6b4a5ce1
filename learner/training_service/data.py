"""Texts with a loss's targets and inputs, and their division into micro-batches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

TARGETS = "target_tokens"


@dataclass(frozen=True, slots=True)
class Datum:
    """A text and the loss's inputs: the model reads token i and predicts target i.

    `tokens` has the shape (L,). `inputs[TARGETS]` has (L,), or (L, K) for K targets at each place. All other
    inputs have the shape of the targets.

    Example: `Datum(np.array([12, 14]), {"target_tokens": np.array([14, 2]), "weights": np.array([0., 1.])})`
    """

    tokens: np.ndarray
    inputs: Mapping[str, np.ndarray]

    @property
    def targets(self) -> np.ndarray:
        return self.inputs[TARGETS]

    @property
    def width(self) -> int:
        """Return the number of targets at each place."""
        return int(np.prod(self.targets.shape[1:], dtype=int))


def micro_batches(data: Sequence[Datum], token_budget: int) -> Iterator[Sequence[Datum]]:
    """Yield neighbouring data whose padded tokens and targets fit the budget; a larger datum comes alone.

    >>> texts = [Datum(np.zeros(length, int), {"target_tokens": np.zeros(length)}) for length in (2, 3, 9)]
    >>> [len(batch) for batch in micro_batches(texts, 6)]
    [2, 1]
    """
    first, longest = 0, 0
    for place, datum in enumerate(data):
        longest = max(longest, datum.targets.size)
        if place > first and (place - first + 1) * longest > token_budget:
            yield data[first:place]
            first, longest = place, datum.targets.size
    if first < len(data):
        yield data[first:]
