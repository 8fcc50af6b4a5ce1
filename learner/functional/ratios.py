"""The clipped surrogate of PPO and the clipped value loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def clipped_surrogate(ratio_N: Tensor, advantages_N: Tensor, clip_range: float) -> Tensor:
    """-min(ρA, clip(ρ, 1-ε, 1+ε)A) a token; Schulman et al. 2017 (arXiv 1707.06347), eq. 7, as a loss.

    Example: ρ = 2, A = 1, ε = 0.2 gives -1.2: the gain stops at 1.2, and so does the gradient.
    """
    clipped_N = ratio_N.clamp(1.0 - clip_range, 1.0 + clip_range)
    return -(ratio_N * advantages_N).minimum(clipped_N * advantages_N)


def value_loss(values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, clip_range: float | None) -> Tensor:
    """(R - V)² a token, without ½.

    With a clip range, V is held within that distance of the value at sampling time (RL4LMs' and
    Stable-Baselines3's form: no maximum of the clipped and the unclipped loss).
    """
    if clip_range is not None:
        values_N = old_values_N + (values_N - old_values_N).clamp(-clip_range, clip_range)
    return (returns_N - values_N).square()


def explained_variance(values_N: Tensor, returns_N: Tensor) -> float:
    """1 - Var(R - V) / Var(R): 1 for a perfect critic, 0 for a constant one, NaN for constant returns."""
    variance = float(returns_N.var(correction=0))
    return float("nan") if variance == 0 else 1.0 - float((returns_N - values_N).var(correction=0)) / variance
