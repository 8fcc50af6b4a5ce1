"""Tokens of high entropy, at which a text could have continued differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def high_entropy(entropies_BT: Tensor, mask_BT: Tensor, share: float) -> Tensor:
    """Return which tokens belong to the `share` of highest entropy, boolean (B, T).

    Wang et al. 2025 (arXiv 2506.01939), with one threshold for all tokens of `mask_BT`: their quantile 1 -
    share, interpolated between two tokens as in trl. Tokens at the threshold count.

    >>> import torch
    >>> entropies, mask = torch.tensor([[0.1, 2.0, 0.3], [1.0, 0.2, 9.0]]), torch.ones(2, 3).bool()
    >>> mask[1, 2] = False
    >>> high_entropy(entropies, mask, 0.4).tolist()
    [[False, True, False], [True, False, False]]
    """
    mask_BT = mask_BT.bool()
    sorted_N = entropies_BT[mask_BT].double().sort().values
    if not len(sorted_N):  # all responses are masked
        return mask_BT
    place = (1.0 - share) * (len(sorted_N) - 1)
    below = int(place)
    above = min(below + 1, len(sorted_N) - 1)
    threshold = sorted_N[below].lerp(sorted_N[above], place - below)
    return mask_BT & (entropies_BT.double() >= threshold)
