"""How far a policy is from another one, estimated from sampled tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def k1(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    """log π(a) - log ρ(a): unbiased for KL(π‖ρ) where a ~ π; single tokens may be negative."""
    return logprobs_N - other_logprobs_N


def k3(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    """r - 1 - log r with r = ρ/π: unbiased for KL(π‖ρ) where a ~ π, never negative.

    Schulman 2020, "Approximating KL divergence". For the drift of an update, π is the old policy
    that sampled and ρ the current one.
    """
    log_ratio = other_logprobs_N - logprobs_N
    return log_ratio.expm1() - log_ratio  # exp() - 1 would drown a drift of 1e-4 in rounding
