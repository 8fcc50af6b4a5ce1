"""KL between two policies, summed over the whole vocabulary: exact, without sampling."""

import torch
from torch import Tensor

from learner.functional.logprobs import WHOLE, Head, Restriction, recomputed, row_chunks


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
    kl_N = torch.empty(hidden_NH.shape[0], device=hidden_NH.device)  # filled chunk by chunk
    for a, b in row_chunks(hidden_NH.shape[0], vocab_size, logits_budget):
        rows = restriction.rows(a, b)
        kl_N[a:b] = recomputed(
            _chunk_kl, hidden_NH[a:b], head, other_hidden_NH[a:b], other_head, forward, rows
        )
    return kl_N


def _chunk_kl(
    hidden_NH: Tensor,
    head: Head,
    other_hidden_NH: Tensor,
    other_head: Head,
    forward: bool,
    restriction: Restriction,
) -> Tensor:
    logprobs_NV = restriction(head(hidden_NH)).log_softmax(-1)
    other_NV = restriction(other_head(other_hidden_NH)).log_softmax(-1)
    return categorical_kl(other_NV, logprobs_NV) if forward else categorical_kl(logprobs_NV, other_NV)


def categorical_kl(logprobs_NV: Tensor, other_logprobs_NV: Tensor) -> Tensor:
    """Return KL(π‖ρ) of two categorical distributions that exclude the same tokens (logarithm -inf)."""
    outside_NV = logprobs_NV.isneginf()
    difference_NV = (logprobs_NV - other_logprobs_NV).masked_fill(outside_NV, 0.0)
    return (logprobs_NV.exp() * difference_NV).sum(-1)
