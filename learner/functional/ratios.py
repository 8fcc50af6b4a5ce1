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
        clip_range_high: the upper range if it is wider (DAPO's clip-higher, arXiv 2503.14476).
        dual_clip: c; for A < 0 the loss stops at c·|A|, however large the ratio (Ye et al. 2020, arXiv
            1912.09729, eq. 5).
    """
    clipped_N = ratio_N.clamp(1.0 - clip_range, 1.0 + (clip_range_high or clip_range))
    gain_N = (ratio_N * advantages_N).minimum(clipped_N * advantages_N)
    if dual_clip is not None:
        gain_N = gain_N.where(advantages_N >= 0, gain_N.maximum(dual_clip * advantages_N))
    return -gain_N


def clipped_weights(ratio_N: Tensor, clip_range: float, clip_range_high: float | None) -> Tensor:
    """Return ρ within 1 - ε and 1 + ε_high, without a gradient: CISPO's weight of ∇log π (arXiv 2506.13585).

    Example: ρ = 2, ε_high = 0.2 gives 1.2, and the token keeps its gradient, unlike with PPO's clipping.
    """
    return ratio_N.detach().clamp(1.0 - clip_range, 1.0 + (clip_range_high or clip_range))


def soft_gate(
    ratio_N: Tensor, advantages_N: Tensor, temperature_positive: float, temperature_negative: float
) -> Tensor:
    """Return f(ρ) = 4/τ · sigmoid(τ (ρ - 1)) of each token, with τ by the advantage's sign.

    Gao et al. 2025 (arXiv 2511.20347). Its slope is 1 at ρ = 1, and falls on both sides.

    Example: ρ = 1 and τ = 1 give 2, and ρ = 3 gives 4 · sigmoid(2) = 3.52.
    """
    positive_N = (advantages_N > 0).to(ratio_N.dtype)
    tau_N = temperature_negative + (temperature_positive - temperature_negative) * positive_N
    return 4.0 / tau_N * (tau_N * (ratio_N - 1.0)).sigmoid()


def binary_kl(old_logprobs_N: Tensor, logprobs_N: Tensor) -> Tensor:
    """Return KL(π_old‖π) of each token against all others, (N,), in nats: at most the whole vocabulary's.

    Qi et al. 2026 (arXiv 2602.04879): p log(p/q) + (1 - p) log((1 - p)/(1 - q)).
    """
    rest_N, old_rest_N = (-log_N.double().expm1() for log_N in (logprobs_N, old_logprobs_N))
    least = 1e-12  # least remaining probability, because a certain token leaves none
    of_rest_N = old_rest_N * (old_rest_N.clamp(min=least) / rest_N.clamp(min=least)).log()
    of_token_N = old_logprobs_N.double().exp() * (old_logprobs_N - logprobs_N).double()
    return (of_token_N + of_rest_N).to(logprobs_N.dtype)


def within_trust_region(
    moved_N: Tensor, divergence_N: Tensor, advantages_N: Tensor, low: float, high: float
) -> Tensor:
    """Return which tokens keep their loss, (N,): tokens with a small divergence, or with a step back.

    Qi et al. 2026 (arXiv 2602.04879), eq. 12. A good token that has become more probable by more than `high`
    has no loss. Neither has a bad token that has become less probable by more than `low`.

    Args:
        moved_N: change of each token's probability.
    """
    too_high_N = (advantages_N > 0) & (moved_N > 0) & (divergence_N > high)
    too_low_N = (advantages_N < 0) & (moved_N < 0) & (divergence_N > low)
    return ~(too_high_N | too_low_N)


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
        num_tokens: the whole minibatch's number of tokens, so that micro-batches' shares sum to its drift.
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

    With a clip range, V stays within that distance of the value at sampling (as in RL4LMs and
    Stable-Baselines3).

    Args:
        pessimistic: take the larger of the clipped and the unclipped loss (as in OpenRL and trl).
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
