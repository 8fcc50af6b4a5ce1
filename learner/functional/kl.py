"""Estimates of the KL between two policies from sampled tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def k1(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    """Return log π(a) - log ρ(a): unbiased for KL(π‖ρ) if a ~ π; single tokens may be negative."""
    return logprobs_N - other_logprobs_N


def k2(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    """Return ½ (log π(a) - log ρ(a))²: a little biased, never negative, with the right gradient in a loss.

    Schulman 2020, "Approximating KL divergence".
    """
    return 0.5 * (logprobs_N - other_logprobs_N).square()


def k3(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    """Return r - 1 - log r with r = ρ/π: unbiased for KL(π‖ρ) if a ~ π, never negative.

    Schulman 2020, "Approximating KL divergence". To measure an update's drift, π is the old policy that
    sampled, and ρ the current one.
    """
    log_ratio = other_logprobs_N - logprobs_N
    return log_ratio.expm1() - log_ratio  # exp() - 1 would lose a drift of 1e-4 in rounding


def exact_gradient_kl(logprobs_N: Tensor, old_logprobs_N: Tensor, ref_logprobs_N: Tensor) -> Tensor:
    """Return ρ (log π - log π_ref) with ρ = π/π_old inside the graph, as trl-textworld does.

    Value and gradient, E_old[ρ ∇log π (log π - log π_ref + 1)], are unbiased for KL(π‖π_ref) under tokens of
    π_old. Without ρ, the expected gradient at π = π_old is E[∇log π] = 0.
    """
    return (logprobs_N - old_logprobs_N).exp() * (logprobs_N - ref_logprobs_N)


def exact_gradient_k3(logprobs_N: Tensor, old_logprobs_N: Tensor, ref_logprobs_N: Tensor) -> Tensor:
    """Return ρ · k3 with ρ = π/π_old inside the graph: value and gradient of KL(π‖π_ref), never negative.

    DeepSeek-V3.2, arXiv 2512.02556; trl's default. Value and gradient are unbiased under tokens of π_old.
    """
    return (logprobs_N - old_logprobs_N).exp() * k3(logprobs_N, ref_logprobs_N)


def forward_kl(logprobs_N: Tensor, old_logprobs_N: Tensor, ref_logprobs_N: Tensor) -> Tensor:
    """Return (π_ref/π_old) (log π_ref - log π): unbiased for KL(π_ref‖π) under tokens of π_old.

    It covers the reference's modes instead of seeking one, which prevents collapse.
    """
    return (ref_logprobs_N - old_logprobs_N).exp() * (ref_logprobs_N - logprobs_N)
