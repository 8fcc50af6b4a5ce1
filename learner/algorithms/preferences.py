"""What DPO and PRO share: the responses of a prompt, ranked, are compared with each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from contracts.errors import LearnerError
from learner.algorithms.from_data import FromData

if TYPE_CHECKING:
    from contracts.rollout import Rollout


class Preferences(FromData):
    """The responses of a prompt are the rollouts of a group; the best has the lowest lease id."""

    whole_groups: ClassVar[bool] = True  # a loss sees all responses of a prompt at once

    minibatch_size: int | None = Field(default=32, ge=1)  # responses; None: the whole batch

    def check(self, rollouts: Sequence[Rollout]) -> None:
        """Raises LearnerError where a prompt has one response alone, or two that are the same."""
        super().check(rollouts)
        groups = by_group(rollouts)
        alone = [group for group in groups if len(group) < 2]
        equal = [group for group in groups if len({each.tokens for each in group}) < len(group)]
        for found, what, expected in (
            (alone, "one response alone", "at least two, which can be compared"),
            (equal, "equal responses", "different ones: of the same there is no better"),
        ):
            if found:
                first = found[0][0]
                raise LearnerError(
                    f"{len(found)} of {len(groups)} prompts have {what}, the first is {first.prompt.id} "
                    f"(group {first.group}); expected {expected}. Leave those prompts out"
                )


def by_group(rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
    """The rollouts of each group, in their order."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return list(groups.values())
