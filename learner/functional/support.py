"""Compute the support of a warped or masked policy, that is the tokens that it could draw, as bits.

A rollout worker that restricts its distribution (top-k, top-p, a minimum length, NLPO's mask) doesn't sample
from the whole softmax. Ratio, KL and entropy must use the restricted distribution. So the policy that sampled
computes the support once a batch and keeps it, one bit for each word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from contracts.rollout import MaskRule, Sampling
from contracts.token_sets import mask_set, top_k_set, top_p_set
from learner.functional.repetition import RepetitionRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SamplingDistribution:
    """Distribution from which a worker draws tokens, with all settings that change probabilities.

    Example: `SamplingDistribution(Sampling(max_tokens=20, top_k=50), end_tokens=(2,))`
    """

    sampling: Sampling
    end_tokens: tuple[int, ...] = ()
    mask: MaskRule | None = None
    ignored_mask: MaskRule | None = None  # workers apply this mask, but ratios ignore it (RL4LMs' form)
    repetition: RepetitionRule | None = None

    @property
    def restricts(self) -> bool:
        """Return whether the distribution excludes tokens."""
        return self.sampling.excludes_tokens or self.mask is not None


def allowed_tokens(
    logits_NV: Tensor, positions_N: Tensor, distribution: SamplingDistribution, mask_logits_NV: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the tokens that the worker could draw.

    End tokens are excluded before the minimum length, then tokens outside the mask model's set. Temperature,
    top-k and top-p restrict the rest.

    Args:
        logits_NV: logits of the policy that sampled, with its repetition penalty.
        positions_N: index of each token in its turn.
        mask_logits_NV: logits of the mask model (NLPO).

    Returns:
        Two boolean tensors: `allowed_NV`, and the tokens that the mask alone allows, or None.
    """
    sampling = distribution.sampling
    early_N1 = (positions_N < sampling.min_tokens)[:, None]
    possible_NV = torch.ones_like(logits_NV, dtype=torch.bool)
    if sampling.min_tokens and distribution.end_tokens:
        possible_NV[:, list(distribution.end_tokens)] = ~early_N1
    masked_NV = None
    if distribution.mask and mask_logits_NV is not None:
        # Impossible tokens must leave the mask model's distribution, too, or it could allow nothing else.
        masked_NV = mask_set(mask_logits_NV.masked_fill(~possible_NV, -torch.inf), distribution.mask)
        possible_NV, masked_NV = possible_NV & masked_NV, masked_NV | ~possible_NV
    warped_NV = (logits_NV / sampling.temperature).masked_fill(~possible_NV, -torch.inf)
    if 0 < sampling.top_k < logits_NV.shape[-1]:
        warped_NV = warped_NV.masked_fill(~top_k_set(warped_NV, sampling.top_k), -torch.inf)
    if sampling.top_p < 1.0:
        warped_NV = warped_NV.masked_fill(~top_p_set(warped_NV.softmax(-1), sampling.top_p), -torch.inf)
    return warped_NV.isfinite(), masked_NV


def pack_bits(allowed_NV: Tensor) -> Tensor:
    """Pack (N, V) booleans into (N, ⌈V/8⌉) bytes.

    >>> pack_bits(torch.tensor([[True, False, True, False, False, False, False, False, True]])).tolist()
    [[5, 1]]
    """
    padded = torch.nn.functional.pad(allowed_NV, (0, -allowed_NV.shape[-1] % 8)).unflatten(-1, (-1, 8))
    return (padded.to(torch.uint8) << _shifts(padded)).sum(-1, dtype=torch.uint8)


def unpack_bits(bits_NW: Tensor, vocab_size: int) -> Tensor:
    """Unpack the bytes of `pack_bits` into (N, V) booleans."""
    own_bit = torch.ones((), dtype=torch.uint8, device=bits_NW.device) << _shifts(bits_NW)
    return ((bits_NW[:, :, None] & own_bit) != 0).flatten(1)[:, :vocab_size]


def _shifts(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
