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


def returns_to_go(rewards_BT: Tensor) -> Tensor:
    """Return each token's own reward and all behind it, (B, T).

    >>> import torch
    >>> returns_to_go(torch.tensor([[1.0, 0.0, 2.0]])).tolist()
    [[3.0, 2.0, 2.0]]
    """
    return rewards_BT.flip(-1).cumsum(-1).flip(-1)


def group_token_advantages(
    returns_BT: Tensor, mask_BT: Tensor, groups_B: Tensor, *, scale: bool, eps: float = 1e-4
) -> Tensor:
    """Return each token's return less the mean return of the group's responses from the same place on.

        A_it = R_it - mean_j R_j,min(t, T_j)        divided by √(mean_t var_j R_j,min(t, T_j))

    with T_j the last token of response j, so that rewards at last tokens alone give `group_advantages`. As in
    GRPO with process supervision (Shao et al. 2024, arXiv 2402.03300, §4.1.3), a token earns the rewards
    behind it. There each step's reward is normalised before the sum, by the mean over all steps: a further
    step of a middling reward counts for nothing, and a last token without a reward has a loss. A baseline of
    the same place depends on no token of its own, so that what is maximised is still the sum of rewards.

    >>> import torch
    >>> returns, mask = torch.tensor([[3.0, 2.0], [1.0, 0.0]]), torch.tensor([[True, True], [True, False]])
    >>> group_token_advantages(returns, mask, torch.tensor([4, 4]), scale=False).tolist()
    [[1.0, 0.5], [-1.0, 0.0]]
    """
    index_B, sizes_G = _indexed(groups_B)
    last_B1 = (mask_BT.long().sum(-1, keepdim=True) - 1).clamp(min=0)  # a row may have no token
    places_BT = (mask_BT.long() * 0 + 1).cumsum(-1) - 1
    held_BT = returns_BT.double().gather(1, places_BT.minimum(last_B1))
    means_GT = _sums(held_BT, index_B, sizes_G) / sizes_G[:, None]
    centred_BT = held_BT - means_GT[index_B]
    if scale:
        squares_GT = _sums(centred_BT.square(), index_B, sizes_G) / (sizes_G - 1).clamp(min=1)[:, None]
        longest_G = last_B1.new_zeros(len(sizes_G)).scatter_reduce(0, index_B, last_B1[:, 0], "amax")
        there_GT = places_BT[: len(sizes_G)] <= longest_G[:, None]
        deviation_G = ((squares_GT * there_GT).sum(-1) / there_GT.sum(-1)).sqrt()
        centred_BT = centred_BT / (deviation_G[index_B, None] + eps)
    return centred_BT.where(mask_BT, 0.0).to(returns_BT.dtype)


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


def _sums(values: Tensor, index_B: Tensor, sizes_G: Tensor) -> Tensor:
    """Sum (B,) or (B, T) by group in float64, where the mean of equal float32 is exact: see `whiten`."""
    values = values.double()
    return values.new_zeros(len(sizes_G), *values.shape[1:]).index_add(0, index_B, values)
