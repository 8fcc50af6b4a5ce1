"""Credit for tokens: generalised advantage estimation and whitening."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.errors import LearnerError

if TYPE_CHECKING:
    from torch import Tensor


def generalized_advantages(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of GAE(γ, λ), Schulman et al. 2016 (arXiv 1506.02438), eq. 16.

        δ_t = r_t + γ V_{t+1} - V_t        A_t = δ_t + γ λ A_{t+1}        R_t = A_t + V_t

    The value after a rollout's last token is 0: its end is a true end.

    Args:
        rewards_BT: reward of each model token.
        values_BT: value before each model token was chosen.
        mask_BT: 1 where there is a token; tokens are left-aligned.

    Returns:
        (advantages_BT, returns_BT), zero outside the mask.
    """
    mask = mask_BT.to(values_BT.dtype)
    advantages_BT = values_BT.new_zeros(values_BT.shape)
    following_value = values_BT.new_zeros(values_BT.shape[0])
    following_advantage = following_value
    for t in reversed(range(values_BT.shape[1])):
        delta = rewards_BT[:, t] + gamma * following_value - values_BT[:, t]
        following_advantage = (delta + gamma * gae_lambda * following_advantage) * mask[:, t]
        following_value = values_BT[:, t] * mask[:, t]
        advantages_BT[:, t] = following_advantage
    return advantages_BT, (advantages_BT + values_BT) * mask


def whiten(values_N: Tensor, eps: float = 1e-8) -> Tensor:
    """Mean 0 and (unbiased) standard deviation 1; a single value only loses its mean.

    In float64, where the mean of equal float32 values is exact: in float32 its rounding error,
    divided by its own standard deviation, would make credit of order one out of equal rewards.
    """
    centred = values_N.double() - values_N.double().mean()
    scale = centred.std() + eps if values_N.numel() > 1 else 1.0
    return (centred / scale).to(values_N.dtype)


def require_finite(values_BT: Tensor, mask_BT: Tensor, what: str) -> None:
    """A single NaN would turn every weight into NaN at the next step.

    Raises:
        LearnerError: an entry within the mask is infinite or NaN.
    """
    finite_BT = values_BT.isfinite() | ~mask_BT.bool()
    if not bool(finite_BT.all()):
        row, column = (~finite_BT).nonzero()[0].tolist()
        raise LearnerError(
            f"{what}: got {float(values_BT[row, column])} for token {column} of rollout {row} of the batch; "
            "finite numbers are expected. The weights are still those of the iteration before; look at the "
            "rewards and at loss/value of the iterations before this one"
        )
