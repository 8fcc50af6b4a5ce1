"""Log-probabilities of chosen tokens without keeping a whole vocabulary of logits in memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from learner.functional.repetition import RepetitionPenalty
from learner.functional.support import unpack_bits

Result = TypeVar("Result")

Head = Callable[[Tensor], Tensor]  # hidden (N, H) -> logits (N, V)


@dataclass(frozen=True, slots=True)
class Restriction:
    """Difference between the sampled distribution and the whole softmax.

    Both sides of a ratio or a KL use the same restriction, so they have the same actions.
    """

    temperature: float = 1.0
    bits_NW: Tensor | None = None  # tokens that could be drawn; None: all
    repetition: RepetitionPenalty | None = None

    def rows(self, start: int, stop: int) -> "Restriction":
        bits = None if self.bits_NW is None else self.bits_NW[start:stop]
        repetition = None if self.repetition is None else self.repetition.rows(start, stop)
        return Restriction(self.temperature, bits, repetition)

    def __call__(self, logits_NV: Tensor) -> Tensor:
        """Return logits of the restricted distribution; excluded tokens get -inf and no gradient."""
        logits_NV = logits_NV.float()
        if self.repetition is not None:
            logits_NV = logits_NV * self.repetition.factors(logits_NV)
        if self.temperature != 1.0:
            logits_NV = logits_NV / self.temperature
        if self.bits_NW is None:
            return logits_NV
        return logits_NV.masked_fill(~unpack_bits(self.bits_NW, logits_NV.shape[-1]), -torch.inf)


WHOLE = Restriction()


def token_logprobs(
    hidden_NH: Tensor,
    targets_N: Tensor,
    head: Head,
    *,
    vocab_size: int,
    logits_budget: int,
    with_entropy: bool,
    restriction: Restriction = WHOLE,
) -> tuple[Tensor, Tensor | None]:
    """Return each token's log π(target), and π's entropies or None; π = softmax(head(h)), restricted.

    If the N × V logits exceed `logits_budget` numbers, they are computed in chunks of rows, and again in the
    backward pass. So the budget limits memory for any vocabulary.

    Returns:
        (logprobs_N, entropies_N or None), in float32.
    """
    chunks = list(row_chunks(hidden_NH.shape[0], vocab_size, logits_budget))
    if len(chunks) == 1:
        return _chunk_logprobs(hidden_NH, targets_N, head, with_entropy, restriction)
    parts = []
    for a, b in chunks:
        rows = restriction.rows(a, b)
        parts.append(recomputed(_chunk_logprobs, hidden_NH[a:b], targets_N[a:b], head, with_entropy, rows))
    logprobs_N = torch.cat([logprobs for logprobs, _ in parts])
    return logprobs_N, torch.cat([e for _, e in parts if e is not None]) if with_entropy else None


def row_chunks(num_rows: int, vocab_size: int, logits_budget: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of row chunks whose logits fit the budget.

    >>> list(row_chunks(5, vocab_size=10, logits_budget=20))
    [(0, 2), (2, 4), (4, 5)]
    """
    rows = max(1, logits_budget // vocab_size)
    for start in range(0, max(num_rows, 1), rows):
        yield start, min(start + rows, num_rows)


def recomputed(function: Callable[..., Result], hidden_NH: Tensor, *arguments: object) -> Result:
    """Call a function now and again in the backward pass, so that intermediate results are not kept."""
    if not torch.is_grad_enabled():
        return function(hidden_NH, *arguments)
    device = hidden_NH.device.type
    # Chunks that share autocast's copy of the head's weight would sum its gradient in bfloat16.
    own_casts = torch.autocast(
        device,
        dtype=torch.get_autocast_dtype(device),
        enabled=torch.is_autocast_enabled(device),
        cache_enabled=False,
    )
    with own_casts:
        # A head has no dropout, so the random state is not kept.
        result: Result = checkpoint(
            function, hidden_NH, *arguments, use_reentrant=False, preserve_rng_state=False
        )
    return result


def _chunk_logprobs(
    hidden_NH: Tensor, targets_N: Tensor, head: Head, with_entropy: bool, restriction: Restriction
) -> tuple[Tensor, Tensor | None]:
    logits_NV = restriction(head(hidden_NH))
    # gather - logsumexp keeps one N × V array for the backward pass; log_softmax would keep two. The formula
    # is the same with or without entropy, so equal weights have a KL of exactly 0. Otherwise whitening would
    # turn rounding errors into advantages if all rewards are equal.
    norms_N = logits_NV.logsumexp(-1)
    logprobs_N = logits_NV.gather(-1, targets_N[:, None]).squeeze(-1) - norms_N
    if not with_entropy:
        return logprobs_N, None
    logprobs_NV = logits_NV - norms_N[:, None]
    # 0 · -inf is NaN, and so is its gradient, so logarithms outside the support become 0
    finite_NV = logprobs_NV.masked_fill(logits_NV.isneginf(), 0.0)
    return logprobs_N, -(logprobs_NV.exp() * finite_NV).sum(-1)
