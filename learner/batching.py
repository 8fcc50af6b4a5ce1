"""Rollouts laid into tensors, and split into micro-batches by a budget of tokens.

Rows are padded on the right only: behind a causal mask no real token can see the padding, so no
attention mask is needed and the fast attention kernels apply.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contracts.errors import LearnerError
from contracts.rollout import Rollout


@dataclass(frozen=True, slots=True)
class Batch:
    """All rollouts of one update. _L all tokens of a rollout, _T only the model's, both left-aligned.

    Example: prompt (12, 14), answer (15, 2), reward 0.5.

        tokens_BL [[12, 14, 15, 2]]   loss_mask_BL [[0, 0, 1, 1]]
        mask_BT [[1, 1]]   rewards_BT [[0, .5]]   behavior_logprobs_BT [[-.7, -.1]]   versions_BT [[4, 4]]
        positions_BT [[0, 1]] (in its own turn)   groups_B [4]
    """

    tokens_BL: Tensor
    loss_mask_BL: Tensor
    lengths_B: Tensor
    mask_BT: Tensor
    rewards_BT: Tensor
    behavior_logprobs_BT: Tensor
    versions_BT: Tensor
    positions_BT: Tensor
    groups_B: Tensor

    @property
    def num_rollouts(self) -> int:
        return self.tokens_BL.shape[0]

    @property
    def num_tokens(self) -> int:
        """How many tokens train: the model's own."""
        return int(self.mask_BT.sum())


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some rows of a batch, cut to the longest of them."""

    rows_B: Tensor
    tokens_BL: Tensor
    loss_mask_BL: Tensor

    @property
    def targets_N(self) -> Tensor:
        """The model's tokens, flat."""
        return self.tokens_BL[:, 1:][self.loss_mask_BL[:, 1:]]


def collate(rollouts: Sequence[Rollout], device: torch.device | str = "cpu") -> Batch:
    """Lay rollouts into one padded batch.

    Raises:
        LearnerError: a rollout has no token to train on, or begins with one of the model's.
    """
    for rollout in rollouts:
        num_prompt = len(rollout.turns[0].observation) if rollout.turns else 0
        if num_prompt == 0 or rollout.num_generated == 0:
            raise LearnerError(
                f"rollout of lease {rollout.lease_id} (prompt {rollout.prompt.id}) has "
                f"{num_prompt} prompt tokens and {rollout.num_generated} generated; "
                "both must be at least 1"
            )
    masks = [rollout.loss_mask for rollout in rollouts]

    def of_model(values: Sequence[float], mask: Sequence[int]) -> list[float]:
        return [value for value, mine in zip(values, mask, strict=True) if mine]

    model_only = list(zip(rollouts, masks, strict=True))
    return Batch(
        tokens_BL=_pad([r.tokens for r in rollouts], torch.long, device),
        loss_mask_BL=_pad(masks, torch.bool, device),
        lengths_B=torch.tensor([len(mask) for mask in masks]),
        mask_BT=_pad([[1] * sum(mask) for mask in masks], torch.bool, device),
        rewards_BT=_pad([of_model(r.token_rewards, m) for r, m in model_only], torch.float32, device),
        behavior_logprobs_BT=_pad(
            [of_model(r.behavior_logprobs, m) for r, m in model_only], torch.float32, device
        ),
        versions_BT=_pad([of_model(r.weight_versions, m) for r, m in model_only], torch.long, device),
        positions_BT=_pad(
            [[i for turn in r.turns for i in range(len(turn.tokens))] for r in rollouts], torch.long, device
        ),
        groups_B=torch.tensor([r.group for r in rollouts], device=device),
    )


def _pad(rows: Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=dtype, device=device)


def micro_batches(batch: Batch, rows_B: Tensor, token_budget: int) -> Iterator[MicroBatch]:
    """Split `rows_B` so that no part holds more than `token_budget` tokens, padding included.

    Rows are taken longest first, so that rows of like length share a micro-batch and padding is
    rare. A row longer than the budget makes a micro-batch of its own.
    """
    by_length = rows_B[batch.lengths_B[rows_B].argsort(descending=True, stable=True)]
    start = 0
    while start < len(by_length):
        longest = int(batch.lengths_B[by_length[start]])
        chosen = by_length[start : start + max(1, token_budget // longest)]
        on_device = chosen.to(batch.tokens_BL.device)
        yield MicroBatch(
            rows_B=on_device,
            tokens_BL=batch.tokens_BL[on_device, :longest],
            loss_mask_BL=batch.loss_mask_BL[on_device, :longest],
        )
        start += len(chosen)
