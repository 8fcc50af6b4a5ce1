"""Log-probabilities of chosen tokens without keeping a whole vocabulary of logits in memory."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Head = Callable[[Tensor], Tensor]  # hidden (N, H) -> logits (N, V)


def token_logprobs(
    hidden_NH: Tensor,
    targets_N: Tensor,
    head: Head,
    *,
    vocab_size: int,
    logits_budget: int,
    with_entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(head(h))[target], and the entropy of softmax(head(h)), a token.

    When the N × V logits exceed `logits_budget` numbers they are made in chunks of rows, and made
    again in the backward pass, so that memory is set by the budget and not by the vocabulary.

    Returns:
        (logprobs_N, entropies_N or None), in float32.
    """
    rows = max(1, logits_budget // vocab_size)
    if hidden_NH.shape[0] <= rows:
        return _chunk_logprobs(hidden_NH, targets_N, head, with_entropy)
    parts = [
        _recomputed(hidden_NH[start : start + rows], targets_N[start : start + rows], head, with_entropy)
        for start in range(0, hidden_NH.shape[0], rows)
    ]
    logprobs_N = torch.cat([logprobs for logprobs, _ in parts])
    return logprobs_N, torch.cat([e for _, e in parts if e is not None]) if with_entropy else None


def _recomputed(
    hidden_NH: Tensor, targets_N: Tensor, head: Head, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    if not torch.is_grad_enabled():
        return _chunk_logprobs(hidden_NH, targets_N, head, with_entropy)
    # There is no dropout in a head, so the random state needs no keeping.
    result: tuple[Tensor, Tensor | None] = checkpoint(
        _chunk_logprobs,
        hidden_NH,
        targets_N,
        head,
        with_entropy,
        use_reentrant=False,
        preserve_rng_state=False,
    )
    return result


def _chunk_logprobs(
    hidden_NH: Tensor, targets_N: Tensor, head: Head, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    logits_NV = head(hidden_NH).float()
    if not with_entropy:
        # gather - logsumexp keeps one N × V array for the backward pass; log_softmax would keep two
        chosen_N = logits_NV.gather(-1, targets_N[:, None]).squeeze(-1)
        return chosen_N - logits_NV.logsumexp(-1), None
    logprobs_NV = logits_NV.log_softmax(-1)
    entropies_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
    return logprobs_NV.gather(-1, targets_N[:, None]).squeeze(-1), entropies_N
