"""Surrogates of the policy gradient by probability ratios, and the clipped value loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.functional.kl import k3

if TYPE_CHECKING:
    from torch import Tensor


def clipped_surrogate(
    ratio_N: Tensor,
    advantages_N: Tensor,
    clip_range: float,
    *,
    clip_range_high: float | None = None,
    dual_clip: float | None = None,
) -> Tensor:
    """Return -min(ρA, clip(ρ, 1-ε, 1+ε)A) per token; Schulman et al. 2017 (arXiv 1707.06347), eq. 7.

    Example: ρ = 2, A = 1, ε = 0.2 gives -1.2: the gain stops at 1.2, and so does the gradient.

    Args:
        clip_range_high: the upper range where it is wider (DAPO's clip-higher, arXiv 2503.14476).
        dual_clip: c; for A < 0 the loss stops at c·|A|, however large the ratio (Ye et al. 2020,
            arXiv 1912.09729, eq. 5).
    """
    clipped_N = ratio_N.clamp(1.0 - clip_range, 1.0 + (clip_range_high or clip_range))
    gain_N = (ratio_N * advantages_N).minimum(clipped_N * advantages_N)
    if dual_clip is not None:
        gain_N = gain_N.where(advantages_N >= 0, gain_N.maximum(dual_clip * advantages_N))
    return -gain_N


def clipped_weights(ratio_N: Tensor, clip_range: float, clip_range_high: float | None) -> Tensor:
    """Return ρ within 1 - ε and 1 + ε_high, without a gradient: CISPO's weight of ∇log π (arXiv 2506.13585).

    Example: ρ = 2, ε_high = 0.2 gives 1.2, and the token still pulls; by PPO's clipping it would not.
    """
    return ratio_N.detach().clamp(1.0 - clip_range, 1.0 + (clip_range_high or clip_range))


def clipped_policy(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    num_tokens: int,
    clip_range: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return PPO's surrogate of each token, and metrics of the drift from the policy that sampled.

    Args:
        num_tokens: the whole minibatch's number of tokens, so that shares of micro-batches sum to its drift.
    """
    ratio_N = (logprobs_N - old_logprobs_N).exp()
    surrogate_N = clipped_surrogate(ratio_N, advantages_N, clip_range, dual_clip=dual_clip)
    ratio_N = ratio_N.detach()
    return surrogate_N, {
        "approx_kl": k3(old_logprobs_N, logprobs_N.detach()).sum() / num_tokens,
        "clip_fraction": ((ratio_N - 1).abs() > clip_range).sum() / num_tokens,
        "ratio/mean": ratio_N.sum() / num_tokens,
    }


def value_loss(
    values_N: Tensor,
    old_values_N: Tensor,
    returns_N: Tensor,
    clip_range: float | None,
    *,
    pessimistic: bool = False,
    huber_delta: float | None = None,
) -> Tensor:
    """Return (R - V)² of each token, without ½.

    With a clip range, V stays within that distance of the value at sampling time (RL4LMs' and
    Stable-Baselines3's form).

    Args:
        pessimistic: take the larger of the clipped and the unclipped loss (OpenRL's and trl's form).
        huber_delta: quadratic up to this error, linear beyond: e² or δ(2|e| - δ).
    """

    def error(values_N: Tensor) -> Tensor:
        e_N = returns_N - values_N
        if huber_delta is None:
            return e_N.square()
        linear_N = huber_delta * (2 * e_N.abs() - huber_delta)
        return e_N.square().where(e_N.abs() <= huber_delta, linear_N)

    if clip_range is None:
        return error(values_N)
    clipped_N = old_values_N + (values_N - old_values_N).clamp(-clip_range, clip_range)
    return error(clipped_N).maximum(error(values_N)) if pessimistic else error(clipped_N)


def explained_variance(values_N: Tensor, returns_N: Tensor) -> float:
    """Return 1 - Var(R - V) / Var(R): 1 for a perfect critic, 0 for a constant one, NaN for constant R."""
    variance = float(returns_N.var(correction=0))
    return float("nan") if variance == 0 else 1.0 - float((returns_N - values_N).var(correction=0)) / variance
