"""Roles of one policy in an episode: each is trained as its own rollout, compared with the same role."""

from collections.abc import Sequence
from dataclasses import replace

from contracts.rollout import Rollout, Turn


def by_role(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return each role's turns of each rollout as a separate rollout, in a separate group.

    Rollouts of a single role are returned unchanged.

    Example: two debates of group 4, each with the roles `pro` and `con`, become four rollouts. Those of `con`
    are in group 8, those of `pro` in group 9.
    """
    numbers = {role: n for n, role in enumerate(sorted({r for rollout in rollouts for r in rollout.roles}))}
    if len(numbers) < 2:
        return list(rollouts)
    return [
        replace(
            rollout,
            turns=tuple(turn for turn in rollout.turns if turn.role == role),
            group=rollout.group * len(numbers) + numbers[role],
        )
        for rollout in rollouts
        for role in rollout.roles
    ]


def earned(turns: Sequence[Turn], *, by_token: bool, discount: float = 1.0) -> tuple[float, ...]:
    """Return numbers that compare rollouts of a group: a role's score, and rewards of tokens before the last.

    Two rollouts with equal numbers teach nothing by their difference.

    Args:
        by_token: whether the algorithm credits tokens with their rewards.
        discount: the factor on a reward for each turn before it.

    Example: a turn's tokens with 0.5, 0 and 1 are `(1.5, 0, 0.5)`: the sum, then a place with its reward.
    """
    total = sum(discount**number * (turn.reward or 0.0) for number, turn in enumerate(turns))
    if not by_token or not any(turn.token_rewards for turn in turns):
        return (total,)
    rewards = [
        reward
        for turn in turns
        for reward in turn.token_rewards or (*[0.0] * (turn.num_tokens - 1), turn.reward or 0.0)
    ]
    return total, *(x for place, reward in enumerate(rewards[:-1]) if reward for x in (place, reward))
