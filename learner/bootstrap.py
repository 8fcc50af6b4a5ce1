"""What a rollout that was cut off would still have earned: the value of what the model would see next."""

from collections.abc import Sequence

import torch
from torch import Tensor

from contracts.rollout import FinishReason, Rollout, Turn
from learner.actor_critic import ActorCritic
from learner.batching import collate
from learner.dealing import dealt
from learner.ranks import ALONE, Ranks

ANY_TOKEN = 0  # a value is of the state in front of a token, whatever comes then


@torch.no_grad()
def bootstrap_values(
    rollouts: Sequence[Rollout],
    pair: ActorCritic,
    token_budget: int,
    device: torch.device | str,
    ranks: Ranks = ALONE,
) -> Tensor:
    """V(`Rollout.pending`) by the critic as it is now, (B,), in units of the rewards; 0 after a true end."""
    values_B = torch.zeros(len(rollouts), device=device)
    cut = [row for row, rollout in enumerate(rollouts) if rollout.pending]
    if not cut:
        return values_B
    batch, rows_B = collate([_next_turn(rollouts[row]) for row in cut], device), torch.tensor(cut)
    for micro in dealt(batch, torch.arange(len(cut)), token_budget, ranks):
        found_N = pair.critic(pair.policy, micro, pair.policy.states(micro)).float()
        if pair.value_norm is not None:
            found_N = pair.value_norm.denormalize(found_N)
        if micro.weight:
            values_B[rows_B.to(values_B.device)[micro.rows_N]] = found_N
    ranks.sum(values_B)
    return values_B


def _next_turn(rollout: Rollout) -> Rollout:
    turn = Turn(rollout.pending, (ANY_TOKEN,), "", (0.0,), (0,))
    return Rollout(rollout.lease_id, rollout.group, rollout.prompt, (turn,), FinishReason.LENGTH)
