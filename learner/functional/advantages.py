"""Credit for tokens: generalised advantage estimation and whitening."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.errors import LearnerError

if TYPE_CHECKING:
    from torch import Tensor


def generalized_advantages(
    rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    ends_BT: Tensor | None = None,
    turn_gamma: float = 1.0,
    turn_lambda: float | None = None,
    bootstrap_B: Tensor | None = None,
    traces_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return advantages and returns of GAE(γ, λ), Schulman et al. 2016 (arXiv 1506.02438), eq. 16.

        δ_t = r_t + γ V_{t+1} - V_t        A_t = δ_t + γ λ A_{t+1}        R_t = A_t + V_t

    From a turn's last token to the next turn's first, γ·γ_turn replaces γ, and λ_turn replaces λ. The state
    after a rollout's last token has the value `bootstrap_B` and no advantage. trl-textworld's two discounts
    are γ, γ_turn with λ_turn = 0.

    If another policy drew the tokens, traces c cut off later rewards that this policy would hardly have
    reached. Returns are then V-trace's:

        A_t = δ_t + γ λ c_{t+1} A_{t+1}        R_t = c_t A_t + V_t

    Munos et al. 2016 (arXiv 1606.02647); Espeholt et al. 2018 (arXiv 1802.01561), remark 2.

    Args:
        rewards_BT: reward of each generated token.
        values_BT: value before each generated token was chosen.
        mask_BT: 1 for tokens, 0 for padding; tokens are left-aligned.
        ends_BT: the last tokens of turns, see `turns.turn_ends`; None: γ and λ everywhere.
        turn_lambda: λ_turn; None: λ.
        bootstrap_B: the value of a truncated rollout's next state; 0 after a true end. None: all ends are
            true.
        traces_BT: min(1, π_old/μ) of tokens drawn from μ, 1 of the policy's tokens; None: 1 everywhere.

    Returns:
        (advantages_BT, returns_BT), zero outside the mask.
    """
    turn_lambda = gae_lambda if turn_lambda is None else turn_lambda
    discounts_BT = values_BT.new_full(values_BT.shape, gamma)
    decays_BT = values_BT.new_full(values_BT.shape, gamma * gae_lambda)
    if ends_BT is not None:
        discounts_BT.masked_fill_(ends_BT, gamma * turn_gamma)
        decays_BT.masked_fill_(ends_BT, gamma * turn_gamma * turn_lambda)
    if bootstrap_B is None:
        bootstrap_B = values_BT.new_zeros(values_BT.shape[0])
    if traces_BT is None:
        return discounted_advantages(rewards_BT, values_BT, mask_BT, discounts_BT, decays_BT, bootstrap_B)
    decays_BT = decays_BT * traces_BT.roll(-1, dims=-1)  # no advantage follows the last token
    advantages_BT, _ = discounted_advantages(
        rewards_BT, values_BT, mask_BT, discounts_BT, decays_BT, bootstrap_B
    )
    return advantages_BT, (traces_BT * advantages_BT + values_BT).where(mask_BT.bool(), 0.0)


def discounted_advantages(
    rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    discounts_BT: Tensor,
    decays_BT: Tensor,
    bootstrap_B: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute GAE with a discount d and a decay c for each step.

        δ_t = r_t + d_t V_{t+1} - V_t        A_t = δ_t + c_t A_{t+1}        R_t = A_t + V_t

    Args:
        bootstrap_B: V after the last step.

    Returns:
        (advantages_BT, returns_BT), zero outside the mask.
    """
    mask_BT = mask_BT.bool()
    advantages_BT = values_BT.new_zeros(values_BT.shape)
    following_value = bootstrap_B.to(values_BT.dtype)
    following_advantage = following_value.new_zeros(following_value.shape)
    for t in reversed(range(values_BT.shape[1])):
        delta = rewards_BT[:, t] + discounts_BT[:, t] * following_value - values_BT[:, t]
        advantage = delta + decays_BT[:, t] * following_advantage
        following_advantage = advantage.where(mask_BT[:, t], 0.0)
        following_value = values_BT[:, t].where(mask_BT[:, t], following_value)
        advantages_BT[:, t] = following_advantage
    return advantages_BT, (advantages_BT + values_BT).where(mask_BT, 0.0)


ROUNDING = 8 * 2.0**-23  # relative difference that two ways to compute a float32 may have


def whiten(values_N: Tensor, eps: float = 1e-8) -> Tensor:
    """Shift and scale to mean 0 and (unbiased) standard deviation 1; a single value only loses its mean.

    Values that differ by no more than float32's rounding become 0. Otherwise the tiny deviation, as divisor,
    would give equal rewards a credit of order one.
    """
    centred = values_N.double() - values_N.double().mean()
    if values_N.numel() < 2:
        return centred.to(values_N.dtype)
    equal = centred.abs().max() <= ROUNDING * values_N.abs().max()  # a branch would wait for the number
    return (centred / (centred.std() + eps)).masked_fill(equal, 0.0).to(values_N.dtype)


def require_finite(values_BT: Tensor, mask_BT: Tensor, what: str) -> None:
    """Check that all entries are finite, because a NaN would make every weight NaN at the next step.

    Raises:
        LearnerError: an entry within the mask is infinite or NaN.
    """
    finite_BT = values_BT.isfinite() | ~mask_BT.bool()
    if not bool(finite_BT.all()):
        row, column = (~finite_BT).nonzero()[0].tolist()
        raise LearnerError(
            f"{what}: got {float(values_BT[row, column])} for token {column} of rollout {row} of the batch; "
            "finite numbers are expected. The weights are those of the last iteration; look at the "
            "rewards and at loss/value of the iterations before this one"
        )
