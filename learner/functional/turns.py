"""Group tokens into turns: a turn's end, its reward, and credit for whole turns.

A turn is an action of a variable number of steps. `positions_BT` is the index of each token in its turn; a
turn begins at 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from learner.functional.advantages import discounted_advantages

if TYPE_CHECKING:
    from torch import Tensor

TurnValue = Literal["first", "mean"]


def turn_numbers(positions_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the index of each token's turn in its rollout, (B, T), 0 outside the mask.

    >>> import torch
    >>> turn_numbers(torch.tensor([[0, 1, 0, 0]]), torch.tensor([[1, 1, 1, 0]])).tolist()
    [[0, 0, 1, 0]]
    """
    mask_BT = mask_BT.bool()
    return (((positions_BT == 0) & mask_BT).cumsum(-1) - 1) * mask_BT


def turn_ends(positions_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return a boolean (B, T) that is True at the last token of each turn.

    >>> import torch
    >>> turn_ends(torch.tensor([[0, 1, 0, 0]]), torch.tensor([[1, 1, 1, 0]])).tolist()
    [[False, True, True, False]]
    """
    following_BT = positions_BT.roll(-1, dims=1)
    following_BT[:, -1] = 0
    return (following_BT == 0) & mask_BT.bool()


def turn_sums(values_BT: Tensor, turns_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Sum over the tokens of each turn, (B, K) for the K turns of the longest rollout.

    >>> import torch
    >>> numbers, mask = torch.tensor([[0, 0, 1]]), torch.ones(1, 3)
    >>> turn_sums(torch.tensor([[1.0, 2.0, 5.0]]), numbers, mask).tolist()
    [[3.0, 5.0]]
    """
    sums_BK = values_BT.new_zeros(len(values_BT), int(turns_BT.max()) + 1)
    return sums_BK.scatter_add(1, turns_BT, values_BT.where(mask_BT.bool(), 0.0))


def turn_advantages(
    rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    positions_BT: Tensor,
    *,
    value: TurnValue,
    gamma: float,
    turn_gamma: float,
    turn_lambda: float,
    bootstrap_B: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute GAE with whole turns as actions; all tokens of a turn get its value, advantage and return.

        R_k = Σ_i γ^i r_i    d_k = γ^(tokens of k)·γ_turn    δ_k = R_k + d_k V_{k+1} - V_k
        A_k = δ_k + d_k λ_turn A_{k+1}

    A turn of n tokens takes n steps (Sutton, Precup and Singh 1999, options in a semi-Markov process), so
    returns equal those of `generalized_advantages`. trl-textworld discounts by γ·γ_turn for turns of any
    length; at γ = 1, its default, both are equal.

    Args:
        value: `first`: V_k is the value before the turn's first token; `mean`: the mean over its tokens, a
            biased baseline, because it knows a part of the action.
        bootstrap_B: the value after the last turn of a truncated rollout; 0 after a true end.

    Returns:
        (advantages_BT, returns_BT), zero outside the mask.
    """
    mask_BT = mask_BT.bool()
    turns_BT = turn_numbers(positions_BT, mask_BT)
    within_BT = gamma ** positions_BT.to(rewards_BT.dtype)
    lengths_BK = turn_sums(mask_BT.to(values_BT.dtype), turns_BT, mask_BT)
    rewards_BK = turn_sums(rewards_BT * within_BT, turns_BT, mask_BT)
    if value == "first":
        values_BK = turn_sums(values_BT, turns_BT, mask_BT & (positions_BT == 0))
    else:
        values_BK = turn_sums(values_BT, turns_BT, mask_BT) / lengths_BK.clamp(min=1)
    discounts_BK = gamma**lengths_BK * turn_gamma
    advantages_BK, returns_BK = discounted_advantages(
        rewards_BK, values_BK, lengths_BK > 0, discounts_BK, discounts_BK * turn_lambda, bootstrap_B
    )
    advantages_BT, returns_BT = (
        rows_BK.gather(1, turns_BT) * mask_BT for rows_BK in (advantages_BK, returns_BK)
    )
    return advantages_BT, returns_BT
