"""Credit without a critic: compare a response with the others to its prompt."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def group_advantages(scores_B: Tensor, groups_B: Tensor, *, scale: bool, eps: float = 1e-4) -> Tensor:
    """Return each score minus its group's mean; with `scale`, divided by the group's (unbiased) deviation.

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
    """Return each token's reward plus all later rewards, (B, T).

    >>> import torch
    >>> returns_to_go(torch.tensor([[1.0, 0.0, 2.0]])).tolist()
    [[3.0, 2.0, 2.0]]
    """
    return rewards_BT.flip(-1).cumsum(-1).flip(-1)


def group_token_advantages(
    returns_BT: Tensor, mask_BT: Tensor, groups_B: Tensor, *, scale: bool, eps: float = 1e-4
) -> Tensor:
    """Return each token's return minus the mean return of the group's responses from the same place on.

        A_it = R_it - mean_j R_j,min(t, T_j)        divided by √(mean_t var_j R_j,min(t, T_j))

    with T_j the last token of response j, so that rewards only at last tokens give `group_advantages`. As in
    GRPO with process supervision (Shao et al. 2024, arXiv 2402.03300, §4.1.3), a token earns the rewards
    after it. GRPO normalises each step's reward before the sum, by the mean over all steps: a further step
    of a middling reward counts for nothing, and a last token without a reward has a loss. A baseline of the
    same place does not depend on the token itself, so the objective is still the sum of rewards.

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
    """Return each score minus the mean of its group's *others*, unbiased; a group of one gets 0.

    RLOO, Ahmadian et al. 2024 (arXiv 2402.14740), eq. 7.

    >>> import torch
    >>> leave_one_out(torch.tensor([1.0, 3.0, 8.0]), torch.tensor([7, 7, 7])).tolist()
    [-4.5, -1.5, 6.0]
    """
    index_B, sizes_G = _indexed(groups_B)
    sums_B, sizes_B = _sums(scores_B, index_B, sizes_G)[index_B], sizes_G[index_B]
    others_B = (sums_B - scores_B) / (sizes_B - 1).clamp(min=1)
    return ((scores_B - others_B) * (sizes_B > 1)).to(scores_B.dtype)


def decoupled_advantages(
    values_BK: Tensor, weights_BK: Tensor, groups_B: Tensor, *, eps: float = 1e-4
) -> Tensor:
    """Return advantages of several rewards, each normalised in its group before the weighted sum, (B,).

        A_bk = (r_bk - mean of k in the group) / deviation of k in the group        S_b = Σ_k w_bk A_bk
        A_b  = (S_b - mean of the batch) / deviation of the batch

    GDPO, Liu et al. 2026 (arXiv 2601.05242), with unbiased deviations as in trl.

    Args:
        values_BK: each reward; NaN if a reward says nothing, which then counts in no mean and adds nothing.
        weights_BK: each reward's weight.

    >>> import torch
    >>> values = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    >>> group = torch.zeros(4)
    >>> decoupled_advantages(values, torch.ones(4, 2), group)
    tensor([ 0.0000,  1.2247, -1.2247,  0.0000])
    """
    index_B, sizes_G = _indexed(groups_B)
    says_BK = ~values_BK.isnan()
    held_BK = values_BK.double().where(says_BK, 0.0)
    counts_GK = _sums(says_BK, index_B, sizes_G)
    means_GK = _sums(held_BK, index_B, sizes_G) / counts_GK.clamp(min=1)
    centred_BK = (held_BK - means_GK[index_B]).where(says_BK, 0.0)
    squares_GK = _sums(centred_BK.square(), index_B, sizes_G)
    deviation_GK = (squares_GK / (counts_GK - 1).clamp(min=1)).sqrt()
    summed_B = (weights_BK.double() * centred_BK / (deviation_GK[index_B] + eps)).sum(-1)
    centred_B = summed_B - summed_B.mean()
    deviation = (centred_B.square().sum() / max(len(centred_B) - 1, 1)).sqrt()
    return (centred_B / (deviation + eps)).float()


def mean_normalized(scores_B: Tensor, groups_B: Tensor) -> Tensor:
    """Return each score minus its group's mean, divided by the mean of sizes; 0 if all scores are 0.

    MaxRL, Tajwar et al. 2026 (arXiv 2602.02710): for rewards 0 and 1 of N responses, the mean gradient is the
    gradient of Σ_(k < N) pass@k / k, which approaches log p(success) as N grows. The paper divides by the
    mean score. For scores of 0 or more the result is the same. Negative scores could cancel to a mean near 0.

    >>> import torch
    >>> mean_normalized(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4)).tolist()
    [3.0, -1.0, -1.0, -1.0]
    """
    index_B, sizes_G = _indexed(groups_B)
    means_B = (_sums(scores_B, index_B, sizes_G) / sizes_G)[index_B]
    divisors_B = (_sums(scores_B.abs(), index_B, sizes_G) / sizes_G)[index_B]
    divisors_B = divisors_B.where(divisors_B > 0, 1.0)  # all scores are 0, and so are the dividends
    return ((scores_B - means_B) / divisors_B).to(scores_B.dtype)


def pass_at_k_advantages(passes_B: Tensor, groups_B: Tensor, k: int) -> Tensor:
    """Return advantages of responses if the reward is that at least one of k passes, (B,).

        R = 1 - C(F, k) / C(N, k)     σ = √(R (1 - R))     for F failures among N responses
        A = (1 - R) / σ of a response that passes,   (1 - R - C(F - 1, k - 1) / C(N - 1, k - 1)) / σ of others

    These are the means over all sets of k of a group, so no set is drawn. Chen et al. 2025 (arXiv
    2508.10751), eqs. 11 to 15. A group in which R is 0 or 1 teaches nothing. A group smaller than k counts as
    a single set.

    >>> import torch
    >>> one_of_four = torch.tensor([True, False, False, False])
    >>> pass_at_k_advantages(one_of_four, torch.zeros(4), 2)
    tensor([ 1.0000, -0.3333, -0.3333, -0.3333])
    """
    index_B, sizes_G = _indexed(groups_B)
    passed_G = _sums(passes_B, index_B, sizes_G).tolist()
    good, bad = list[float](), list[float]()
    for size, passed in zip(sizes_G.tolist(), passed_G, strict=True):
        of_passing, of_failing = _of_sets(size, size - int(passed), min(k, size))
        good.append(of_passing)
        bad.append(of_failing)
    good_G, bad_G = (sizes_G.double().new_tensor(advantages) for advantages in (good, bad))
    return good_G[index_B].where(passes_B, bad_G[index_B]).float()


def _of_sets(size: int, failed: int, k: int) -> tuple[float, float]:
    """Return the advantage of a passing and of a failing response; (0, 0) if all sets are alike."""
    reward = 1 - math.comb(failed, k) / math.comb(size, k)
    deviation = math.sqrt(reward * (1 - reward))
    if deviation == 0:
        return 0.0, 0.0
    failing_sets = math.comb(failed - 1, k - 1) / math.comb(size - 1, k - 1)
    return (1 - reward) / deviation, (1 - reward - failing_sets) / deviation


def _indexed(groups_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's group as an index 0 … G - 1, and the groups' sizes."""
    _, index_B, sizes_G = groups_B.unique(return_inverse=True, return_counts=True)
    return index_B, sizes_G


def _sums(values: Tensor, index_B: Tensor, sizes_G: Tensor) -> Tensor:
    """Sum (B,) or (B, T) by group in float64, in which the mean of equal float32 is exact: see `whiten`."""
    values = values.double()
    return values.new_zeros(len(sizes_G), *values.shape[1:]).index_add(0, index_B, values)
