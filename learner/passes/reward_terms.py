"""Lay the single rewards of rollouts into tensors, for algorithms that compare each separately."""

from collections.abc import Sequence

import torch

from contracts.rollout import Rollout
from learner.algorithms.inputs import RewardTerms


def reward_terms(rollouts: Sequence[Rollout], device: torch.device | str) -> RewardTerms | None:
    """Return each reward's part of each rollout's total; None: a rollout has only its total."""
    if not all(rollout.reward_terms for rollout in rollouts):
        return None
    names = sorted({name for rollout in rollouts for name in rollout.reward_terms})
    values_BK = torch.full((len(rollouts), len(names)), torch.nan, dtype=torch.float64)
    weights_BK = torch.zeros_like(values_BK)
    for row, rollout in enumerate(rollouts):
        for name, term in rollout.reward_terms.items():
            values_BK[row, names.index(name)] = term.value
            weights_BK[row, names.index(name)] = term.weight
    return RewardTerms(values_BK.to(device), weights_BK.to(device))
