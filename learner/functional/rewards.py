"""From a task's rewards to what each token earns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.functional.advantages import whiten

if TYPE_CHECKING:
    from torch import Tensor


def spread_over_tokens(rewards_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """A response's reward in equal parts on its tokens, instead of all of it at the last.

    >>> import torch
    >>> spread_over_tokens(torch.tensor([[0.0, 0.6, 0.0]]), torch.tensor([[1, 1, 0]])).tolist()
    [[0.30000001192092896, 0.30000001192092896, 0.0]]
    """
    lengths_B1 = mask_BT.sum(-1, keepdim=True).clamp(min=1)
    return rewards_BT.sum(-1, keepdim=True) / lengths_B1 * mask_BT


def whitened(rewards_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Token rewards with mean 0 and deviation 1 over the batch, zeros included (RL4LMs' norm_reward)."""
    mask_BT = mask_BT.bool()
    return rewards_BT.masked_scatter(mask_BT, whiten(rewards_BT[mask_BT]))
