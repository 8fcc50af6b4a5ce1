"""Sets of tokens that a restricted policy may draw: top-k, top-p and NLPO's mask.

Rollout workers sample within these sets, and the learner computes their probabilities again. Both call this
module, because one token more or less would make a ratio wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from contracts.rollout import MaskRule

if TYPE_CHECKING:
    from torch import Tensor


def mask_set(mask_logits_NV: Tensor, rule: MaskRule) -> Tensor:
    """Return NLPO's set, the mask model's top p or top k; Ramamurthy et al. 2023 (arXiv 2210.01241), §4."""
    if rule.top_k is not None:
        inside_NV = top_k_set(mask_logits_NV, max(rule.top_k, rule.min_tokens_to_keep))
    else:
        assert rule.top_p is not None
        inside_NV = top_p_set(mask_logits_NV.softmax(-1), rule.top_p, rule.min_tokens_to_keep)
    if rule.always:
        inside_NV[:, list(rule.always)] = True
    return inside_NV


def top_k_set(logits_NV: Tensor, k: int) -> Tensor:
    """Return the k likeliest tokens and their ties with the last one; a logit of -inf is never in the set."""
    smallest_N1 = logits_NV.topk(min(k, logits_NV.shape[-1])).values[:, -1:]
    return (logits_NV >= smallest_N1) & logits_NV.isfinite()


def top_p_set(probabilities_NV: Tensor, p: float, at_least: int = 1) -> Tensor:
    """Return the smallest set of likeliest tokens whose probability reaches p (Holtzman et al. 2020).

    The set has at least `at_least` tokens, and all ties with its last one, but never a probability of 0.

    >>> top_p_set(torch.tensor([[0.5, 0.3, 0.2]]), 0.7).tolist()
    [[True, True, False]]
    """
    if p >= 1.0:
        return probabilities_NV > 0
    ascending_NV = _sorted(probabilities_NV)
    cumulative_NV = ascending_NV.cumsum(-1)
    # A token is in while the likelier ones hold less than p, so the token that crosses p is in.
    num_outside_N1 = torch.searchsorted(cumulative_NV, cumulative_NV[:, -1:] - p, right=True)
    most_outside = max(probabilities_NV.shape[-1] - at_least, 0)
    smallest_N1 = ascending_NV.gather(-1, num_outside_N1.clamp(max=most_outside))
    return probabilities_NV >= smallest_N1.clamp(min=torch.finfo(torch.float32).tiny)


def _sorted(values_NV: Tensor) -> Tensor:
    """Sort each row in ascending order; NumPy sorts no indices, and takes a 25th of torch's time."""
    if values_NV.device.type == "cpu":
        return torch.from_numpy(np.sort(values_NV.detach().numpy(), axis=-1))
    return values_NV.sort(-1).values
