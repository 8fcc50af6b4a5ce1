"""Lay a reward model's training examples into padded micro-batches within a token budget."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Example:
    """One text with its label, or two texts of which the first is preferred.

    Example: a text of label 1 is `Example(((101, 7, 102),), target=1)`; a pair with margin 0 is
    `Example(((5, 6), (5, 7)), target=0.0)`.
    """

    sequences: tuple[tuple[int, ...], ...]
    target: float  # the label's index, or a pair's margin

    @property
    def longest(self) -> int:
        return max(map(len, self.sequences))


@dataclass(frozen=True, slots=True)
class RewardMicroBatch:
    """Some examples, longest first: _B examples, _N texts (an example's side by side), _L tokens.

    Example: the pairs ((5, 6), (5,)) and ((8,), (9,)): tokens_NL [[5, 6], [5, 0], [8, 0], [9, 0]].
    """

    places: tuple[int, ...]  # indices of the examples in the given sequence
    tokens_NL: Tensor
    mask_NL: Tensor
    targets_B: Tensor


def micro_batches(
    examples: Sequence[Example], token_budget: int, *, filler: int, device: torch.device | str = "cpu"
) -> Iterator[RewardMicroBatch]:
    """Yield examples of similar length together, so that padding is rare; one beyond the budget comes alone.

    Both texts of a pair share a micro-batch, because the loss needs both.
    """
    by_length = sorted(range(len(examples)), key=lambda place: -examples[place].longest)  # stable
    start = 0
    while start < len(by_length):
        first = examples[by_length[start]]
        size = max(1, token_budget // (first.longest * len(first.sequences)))
        places = by_length[start : start + size]
        rows = [sequence for place in places for sequence in examples[place].sequences]
        yield RewardMicroBatch(
            places=tuple(places),
            tokens_NL=_padded(rows, filler).to(device),
            mask_NL=_padded([(1,) * len(row) for row in rows], 0).to(device),
            targets_B=torch.tensor([examples[place].target for place in places], device=device),
        )
        start += len(places)


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    """Pad rows on the right: causal models search the last real token, encoders read the mask."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows], dtype=torch.long)
