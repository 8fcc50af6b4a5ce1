"""Losses that learn from a data set's responses: behaviour cloning, GOLD, R-LoL and A-LoL.

Baheti et al. 2024, "Leftover Lunch: Advantage-based Offline RL for Language Models" (arXiv 2305.14718). The
whole response is one action: it has one reward R, one advantage A = R - V(prompt) and, except in `a_lol_seq`,
one importance weight π/π_ref. Each loss is per token, (N,); `over_responses` reduces it over a minibatch.

Rewards and advantages are per token, the same for all tokens of a response. Weights are constants: only the
log-probability that they multiply is differentiated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from learner.functional.aggregation import sum_by_response

if TYPE_CHECKING:
    from torch import Tensor

Reduction = Literal["sum", "mean"]
KLForm = Literal["log_ratio", "unbiased"]


def nll(logprobs_N: Tensor) -> Tensor:
    """Return -log π, with the same weight for every response."""
    return -logprobs_N


def wbc(logprobs_N: Tensor, rewards_N: Tensor) -> Tensor:
    """Return -R log π: weighted behaviour cloning."""
    return _weighted_nll(logprobs_N, rewards_N)


def r_gold(logprobs_N: Tensor, rewards_N: Tensor, *, floor: float = 0.1) -> Tensor:
    """Return -R max(π, u) log π: a token's weight is the policy's probability of it, at least u.

    GOLD, Pang & He 2021 (arXiv 2009.07839), with the reward instead of a return.
    """
    return _weighted_nll(logprobs_N, rewards_N, logprobs_N.detach().exp().clamp(min=floor))


def r_lol(
    logprobs_N: Tensor,
    ref_logprobs_N: Tensor,
    rewards_N: Tensor,
    rows_N: Tensor,
    *,
    ppo_clip: float | None = 0.9,
) -> Tensor:
    """Return -R w log π with w = π(y)/π_ref(y) of the whole response, in 1 ± ppo_clip (None: no bounds)."""
    weights_N = clipped(sequence_ratios(logprobs_N, ref_logprobs_N, rows_N), ppo_clip)
    return _weighted_nll(logprobs_N, rewards_N, weights_N)


def a_lol(
    logprobs_N: Tensor,
    ref_logprobs_N: Tensor,
    advantages_N: Tensor,
    rows_N: Tensor,
    *,
    ppo_clip: float | None = 0.9,
) -> Tensor:
    """Return -max(A, 0) w log π with w = π(y)/π_ref(y) of the whole response, within 1 ± ppo_clip.

    Example: a response of one token, π = 0.4, π_ref = 0.1, A = 2: w = 4 is clipped to 1.9, the loss is 3.48.
    A response outside the bounds keeps its gradient, unlike with PPO's minimum.
    """
    return r_lol(logprobs_N, ref_logprobs_N, advantages_N.clamp(min=0), rows_N, ppo_clip=ppo_clip)


def a_lol_ref_free(logprobs_N: Tensor, advantages_N: Tensor, *, negative_advantages: bool = False) -> Tensor:
    """Return -max(A, 0) log π: A-LoL with all weights 1. Only V in A depends on the reference.

    Args:
        negative_advantages: also use -A log π for A < 0, as LoL-RL's code does for Helpful-Harmless. That
            response's probability then falls without a bound.
    """
    return _weighted_nll(logprobs_N, advantages_N if negative_advantages else advantages_N.clamp(min=0))


def a_lol_seq(
    logprobs_N: Tensor, ref_logprobs_N: Tensor, advantages_N: Tensor, *, ppo_clip: float | None = 0.9
) -> Tensor:
    """Return -max(A, 0) w_t log π with a weight w_t = π/π_ref for each token, within 1 ± ppo_clip."""
    weights_N = clipped(token_ratios(logprobs_N, ref_logprobs_N), ppo_clip)
    return _weighted_nll(logprobs_N, advantages_N.clamp(min=0), weights_N)


def a_lol_kl(
    logprobs_N: Tensor,
    ref_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    kl_beta: float,
    form: KLForm = "log_ratio",
) -> Tensor:
    """Return -max(A, 0) log π + β K, without weights.

    With log_ratio the gradient is -(A - β) ∇log π. So if A < β, the response's probability falls without a
    bound.
    """
    return a_lol_ref_free(logprobs_N, advantages_N) + kl_beta * kl_term(logprobs_N, ref_logprobs_N, form)


def r_lol_kl(
    logprobs_N: Tensor,
    ref_logprobs_N: Tensor,
    rewards_N: Tensor,
    rows_N: Tensor,
    *,
    kl_beta: float,
    form: KLForm = "unbiased",
    ppo_clip: float | None = 0.9,
) -> Tensor:
    """Return R-LoL + β K. With log_ratio it is -R log π + β K, as published: the KL replaces weights.

    Example: of one token, π = 0.4, π_ref = 0.1, R = 2, β = 0.5: log_ratio gives 2 · 0.916 + 0.5 · 1.386 =
        2.526; unbiased, with the weight clipped to 1.9, 3.8 · 0.916 + 0.5 · (4 · 1.386 - 3) = 4.754.
    """
    kl_N = kl_beta * kl_term(logprobs_N, ref_logprobs_N, form)
    if form == "log_ratio":
        return wbc(logprobs_N, rewards_N) + kl_N
    return r_lol(logprobs_N, ref_logprobs_N, rewards_N, rows_N, ppo_clip=ppo_clip) + kl_N


def kl_term(logprobs_N: Tensor, ref_logprobs_N: Tensor, form: KLForm) -> Tensor:
    """Return K of each token, (N,).

    - log_ratio: log π - log π_ref, as published. On given responses its gradient ignores the reference.
    - unbiased: `reference_kl`, a regulariser whose gradient vanishes at π = π_ref.
    """
    return reference_kl(logprobs_N, ref_logprobs_N) if form == "unbiased" else logprobs_N - ref_logprobs_N


def reference_kl(logprobs_N: Tensor, ref_logprobs_N: Tensor) -> Tensor:
    """Return ρ log ρ - ρ + 1 with ρ = π/π_ref in the graph, which is never negative.

    For tokens drawn from π_ref, the value is an unbiased estimate of a state's KL(π‖π_ref). Its gradient is
    an unbiased estimate of the KL's gradient, E_ref[ρ log ρ ∇log π]. The data's states count as drawn from
    π_ref, as in A-LoL.
    """
    log_ratio_N = logprobs_N - ref_logprobs_N
    return log_ratio_N.exp() * log_ratio_N - log_ratio_N.expm1()  # exp() - 1 would lose small ratios


def sequence_ratios(logprobs_N: Tensor, ref_logprobs_N: Tensor, rows_N: Tensor) -> Tensor:
    """Return π(y)/π_ref(y) of each token's response, without gradient; exactly 1 if both are equal.

    Args:
        rows_N: the response of each token, numbered from 0 without gaps.
    """
    # no more responses than tokens; no token picks the sums after the last response
    log_ratio_B = sum_by_response(logprobs_N.detach() - ref_logprobs_N, rows_N, len(rows_N))
    return log_ratio_B.exp()[rows_N]


def token_ratios(logprobs_N: Tensor, ref_logprobs_N: Tensor) -> Tensor:
    """Return π/π_ref of each token, without gradient."""
    return (logprobs_N.detach() - ref_logprobs_N).exp()


def clipped(ratios_N: Tensor, ppo_clip: float | None) -> Tensor:
    """Clip ratios to 1 ± ppo_clip; None: leave them unclipped.

    A `ppo_clip` of 0 makes all ratios 1. The published code does the same for `a_lol_seq`; for `a_lol` and
    `r_lol`, 0 means no bounds there.
    """
    return ratios_N if ppo_clip is None else ratios_N.clamp(1.0 - ppo_clip, 1.0 + ppo_clip)


def over_responses(
    losses_N: Tensor, lengths_N: Tensor, *, num_rollouts: int, reduction: Reduction = "sum"
) -> Tensor:
    """Sum or average the losses over each response's tokens; return the mean over a minibatch's responses.

    Args:
        lengths_N: number of tokens in each token's response.
        num_rollouts: number of the whole minibatch's rollouts. So the micro-batches' shares sum to its loss.
    """
    return (losses_N if reduction == "sum" else losses_N / lengths_N).sum() / num_rollouts


def _weighted_nll(logprobs_N: Tensor, worth_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
    """Return -worth · weight · log π (`worth`: reward or advantage); a worth of 0 gives 0, never 0 · inf."""
    if weights_N is not None:
        worth_N = (worth_N * weights_N).masked_fill(worth_N == 0, 0.0)
    return -worth_N * logprobs_N
