"""Estimate a truncated rollout's future reward: the critic's value of its next context."""

from collections.abc import Sequence

import torch
from torch import Tensor

from contracts.rollout import FinishReason, Rollout, Turn
from learner.batches.batching import collate
from learner.batches.splitting import rank_micro_batches
from learner.distributed.ranks import ALONE, Ranks
from learner.models.actor_critic import ActorCritic

ANY_TOKEN = 0  # the value is of the state before the token, so any token serves


@torch.no_grad()
def bootstrap_values(
    rollouts: Sequence[Rollout],
    pair: ActorCritic,
    token_budget: int,
    device: torch.device | str,
    ranks: Ranks = ALONE,
) -> Tensor:
    """Return the critic's value of each rollout's `truncated_context`, (B,), in units of the rewards.

    The value is 0 for an episode that was not cut off.
    """
    values_B = torch.zeros(len(rollouts), device=device)
    cut = [row for row, rollout in enumerate(rollouts) if rollout.truncated_context]
    if not cut:
        return values_B
    batch = collate([_next_turn(rollouts[row]) for row in cut], device)
    rows_B = torch.tensor(cut, device=device)
    for micro in rank_micro_batches(batch, torch.arange(len(cut)), token_budget, ranks):
        next_values_N = pair.critic(pair.policy, micro, pair.policy.states(micro)).float()
        if pair.value_norm is not None:
            next_values_N = pair.value_norm.denormalize(next_values_N)
        if micro.weight:
            values_B[rows_B[micro.rows_N]] = next_values_N
    ranks.sum(values_B)
    return values_B


def cut_off(rollouts: Sequence[Rollout], device: torch.device) -> Tensor:
    """Return which rollouts continue after their last turn, boolean (B,)."""
    return torch.tensor([bool(rollout.truncated_context) for rollout in rollouts], device=device)


def _next_turn(rollout: Rollout) -> Rollout:
    turn = Turn(rollout.truncated_context, (ANY_TOKEN,), "", (0.0,), (0,))
    return Rollout(rollout.lease_id, rollout.group, rollout.prompt, (turn,), FinishReason.LENGTH)
