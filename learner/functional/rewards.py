"""Turn a task's rewards into rewards of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from learner.functional.advantages import whiten
from learner.functional.turns import turn_numbers, turn_sums

if TYPE_CHECKING:
    from torch import Tensor


# deviation: rewards in units of their running deviation; a number multiplies them
RewardScale = Annotated[float, Field(gt=0)] | Literal["deviation"]


def in_units(rewards_BT: Tensor, scale: RewardScale, deviation: float) -> Tensor:
    """Return the rewards times `scale`, or in units of the rewards' running deviation.

    In these units the size of a reward changes nothing: β, an entropy bonus and the critic's loss keep their
    weight. Engstrom et al. 2020 (arXiv 2005.12729), §3, divide by the deviation of returns in the same way.

    >>> import torch
    >>> in_units(torch.tensor([470.0, 530.0]), "deviation", 30.0).tolist()
    [15.666666984558105, 17.66666603088379]
    """
    return rewards_BT / deviation if scale == "deviation" else rewards_BT * scale


def spread_over_tokens(rewards_BT: Tensor, mask_BT: Tensor, positions_BT: Tensor) -> Tensor:
    """Spread a turn's reward evenly over its tokens, instead of giving it all to the last token.

    >>> import torch
    >>> mask, positions = torch.tensor([[1, 1, 1, 0]]), torch.tensor([[0, 1, 0, 0]])
    >>> spread_over_tokens(torch.tensor([[0.0, 0.5, 2.0, 0.0]]), mask, positions).tolist()
    [[0.25, 0.25, 2.0, 0.0]]
    """
    turns_BT = turn_numbers(positions_BT, mask_BT)
    lengths_BK = turn_sums(mask_BT.to(rewards_BT.dtype), turns_BT, mask_BT).clamp(min=1)
    shares_BK = turn_sums(rewards_BT, turns_BT, mask_BT) / lengths_BK
    return shares_BK.gather(1, turns_BT) * mask_BT


def overlong_penalty(lengths_B: Tensor, max_tokens: int, share: float) -> Tensor:
    """Return DAPO's soft punishment, (B,): 0 up to (1 - share) max_tokens, then down to -1 at max_tokens.

    Yu et al. 2025 (arXiv 2503.14476), eq. 13, where `share` of `max_tokens` is L_cache.

    >>> import torch
    >>> overlong_penalty(torch.tensor([70, 80, 90, 100]), 100, 0.2).tolist()
    [0.0, 0.0, -0.5, -1.0]
    """
    cache = share * max_tokens
    return 0.0 - ((lengths_B.double() - (max_tokens - cache)) / cache).clamp(0.0, 1.0).float()


def whitened(rewards_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return token rewards with mean 0 and deviation 1 over the batch (RL4LMs' norm_reward)."""
    mask_BT = mask_BT.bool()
    return rewards_BT.masked_scatter(mask_BT, whiten(rewards_BT[mask_BT]))
