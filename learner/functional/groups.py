"""Credit without a critic: compare a response with the others of its prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def group_advantages(scores_B: Tensor, groups_B: Tensor, *, scale: bool, eps: float = 1e-4) -> Tensor:
    """Return each score less its group's mean; with `scale`, divided by the group's (unbiased) deviation.

    GRPO, Shao et al. 2024 (arXiv 2402.03300), eq. 3; without scaling Dr. GRPO (arXiv 2503.20783).

    >>> import torch
    >>> group_advantages(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([7, 7, 9]), scale=False).tolist()
    [-1.0, 1.0, 0.0]
    """
    index_B, sizes_G = _indexed(groups_B)
    means_G = _sums(scores_B, index_B, sizes_G) / sizes_G
    centred_B = scores_B - means_G[index_B]
    if scale:
        squares_G = _sums(centred_B.square(), index_B, sizes_G)
        deviation_G = (squares_G / (sizes_G - 1).clamp(min=1)).sqrt()
        centred_B = centred_B / (deviation_G[index_B] + eps)
    return centred_B.to(scores_B.dtype)


def leave_one_out(scores_B: Tensor, groups_B: Tensor) -> Tensor:
    """Return each score less the mean of its group's *others*, unbiased; one alone in its group gets 0.

    RLOO, Ahmadian et al. 2024 (arXiv 2402.14740), eq. 7.

    >>> import torch
    >>> leave_one_out(torch.tensor([1.0, 3.0, 8.0]), torch.tensor([7, 7, 7])).tolist()
    [-4.5, -1.5, 6.0]
    """
    index_B, sizes_G = _indexed(groups_B)
    sums_B, sizes_B = _sums(scores_B, index_B, sizes_G)[index_B], sizes_G[index_B]
    others_B = (sums_B - scores_B) / (sizes_B - 1).clamp(min=1)
    return ((scores_B - others_B) * (sizes_B > 1)).to(scores_B.dtype)


def _indexed(groups_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's group as an index 0 … G - 1, and the groups' sizes."""
    _, index_B, sizes_G = groups_B.unique(return_inverse=True, return_counts=True)
    return index_B, sizes_G


def _sums(values_B: Tensor, index_B: Tensor, sizes_G: Tensor) -> Tensor:
    """Sum by group in float64, where the mean of equal float32 scores is exact: see `whiten`."""
    values_B = values_B.double()
    return values_B.new_zeros(len(sizes_G)).index_add(0, index_B, values_B)
