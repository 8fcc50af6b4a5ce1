"""Roles of one policy in an episode: each is trained as a rollout of its own, compared with its own kind."""

from collections.abc import Sequence
from dataclasses import replace

from contracts.rollout import Rollout


def by_role(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return each role's turns of each rollout as a rollout of its own, in a group of its own.

    Rollouts of a single role are returned as they are.

    Example: two debates of group 4, each with the roles `pro` and `con`, become four rollouts: those of
    `con` in group 8, those of `pro` in group 9.
    """
    numbers = {role: n for n, role in enumerate(sorted({r for each in rollouts for r in each.roles}))}
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
