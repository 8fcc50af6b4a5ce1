"""Exact divergences between two policies, summed over the whole vocabulary instead of sampled."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from learner.functional.logprobs import WHOLE, Head, Restriction, recomputed, row_chunks

Measure = Callable[[Tensor, Tensor], Tensor]  # takes log-probabilities (N, V) of π and ρ; returns (N,)


def distribution_kl(
    hidden_NH: Tensor,
    head: Head,
    other_hidden_NH: Tensor,
    other_head: Head,
    *,
    vocab_size: int,
    logits_budget: int,
    forward: bool = False,
    restriction: Restriction = WHOLE,
) -> Tensor:
    """Return Σ_v π(v) (log π(v) - log ρ(v)) of each token, in chunks that the backward pass recomputes.

    Args:
        forward: KL(ρ‖π) instead of KL(π‖ρ); π = softmax(head(hidden)), ρ = softmax(other_head(other_hidden)).
    """
    return distribution_divergence(
        *(hidden_NH, head, other_hidden_NH, other_head),
        measure=forward_kl if forward else categorical_kl,
        vocab_size=vocab_size,
        logits_budget=logits_budget,
        restriction=restriction,
    )


def distribution_divergence(
    hidden_NH: Tensor,
    head: Head,
    other_hidden_NH: Tensor,
    other_head: Head,
    *,
    measure: Measure,
    vocab_size: int,
    logits_budget: int,
    restriction: Restriction = WHOLE,
) -> Tensor:
    """Return a measure of π = softmax(head(hidden)) and ρ = softmax(other_head(other_hidden)), (N,)."""
    found_N = torch.empty(hidden_NH.shape[0], device=hidden_NH.device)  # filled chunk by chunk
    for a, b in row_chunks(hidden_NH.shape[0], vocab_size, logits_budget):
        rows = restriction.rows(a, b)
        found_N[a:b] = recomputed(
            _of_chunk, hidden_NH[a:b], head, other_hidden_NH[a:b], other_head, measure, rows
        )
    return found_N


def _of_chunk(
    hidden_NH: Tensor,
    head: Head,
    other_hidden_NH: Tensor,
    other_head: Head,
    measure: Measure,
    restriction: Restriction,
) -> Tensor:
    logprobs_NV = restriction(head(hidden_NH)).log_softmax(-1)
    other_NV = restriction(other_head(other_hidden_NH)).log_softmax(-1)
    return measure(logprobs_NV, other_NV)


def categorical_kl(logprobs_NV: Tensor, other_logprobs_NV: Tensor) -> Tensor:
    """Return KL(π‖ρ) of two categorical distributions that exclude the same tokens (logarithm -inf)."""
    outside_NV = logprobs_NV.isneginf()
    difference_NV = (logprobs_NV - other_logprobs_NV).masked_fill(outside_NV, 0.0)
    return (logprobs_NV.exp() * difference_NV).sum(-1)


def top_logprobs(
    hidden_NH: Tensor, head: Head, tokens_NK: Tensor, *, vocab_size: int, logits_budget: int
) -> Tensor:
    """Return log softmax(head(hidden)) of K tokens at each place, (N, K), in chunks."""
    chunks = row_chunks(hidden_NH.shape[0], vocab_size, logits_budget)
    return torch.cat([recomputed(_top_of_chunk, hidden_NH[a:b], head, tokens_NK[a:b]) for a, b in chunks])


def _top_of_chunk(hidden_NH: Tensor, head: Head, tokens_NK: Tensor) -> Tensor:
    return head(hidden_NH).float().log_softmax(-1).gather(-1, tokens_NK)


def with_rest(logprobs_NK: Tensor) -> Tensor:
    """Return the log-probabilities of K tokens and of the sum of all others, (N, K + 1).

    A divergence of these distributions is at most the whole one, and equal if K is the vocabulary.

    >>> with_rest(torch.tensor([[0.5, 0.25]]).log()).exp()
    tensor([[0.5000, 0.2500, 0.2500]])
    """
    mass_N1 = logprobs_NK.exp().sum(-1, keepdim=True).clamp(max=1 - 1e-6)  # rounding may exceed 1
    return torch.cat([logprobs_NK, torch.log1p(-mass_N1)], dim=-1)


def forward_kl(logprobs_NV: Tensor, other_logprobs_NV: Tensor) -> Tensor:
    """Return KL(ρ‖π); the first argument is π."""
    return categorical_kl(other_logprobs_NV, logprobs_NV)


def jensen_shannon(logprobs_NV: Tensor, other_logprobs_NV: Tensor) -> Tensor:
    """Return (KL(π‖m) + KL(ρ‖m)) / 2 with m = (π + ρ) / 2, which is at most log 2 (Lin 1991).

    >>> both = torch.tensor([[1.0, 0.0]]).log(), torch.tensor([[0.0, 1.0]]).log()
    >>> round(float(jensen_shannon(*both)), 4)
    0.6931
    """
    # the gradient of the logarithm of a sum of two zeros is NaN
    finite = (logprobs.clamp(min=LEAST) for logprobs in (logprobs_NV, other_logprobs_NV))
    mean_NV = torch.logaddexp(*finite) - math.log(2)
    return (categorical_kl(logprobs_NV, mean_NV) + categorical_kl(other_logprobs_NV, mean_NV)) / 2


LEAST = -1e30  # replaces an excluded token's logarithm
MEASURES: Mapping[str, Measure] = {
    "reverse": categorical_kl,
    "forward": forward_kl,
    "jsd": jensen_shannon,
}
