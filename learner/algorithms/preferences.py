"""Base of the algorithms that learn from preferred responses, and functions for pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from contracts.errors import LearnerError
from learner.algorithms.from_data import FromData
from learner.algorithms.inputs import Credit, CreditInputs, LossInputs, LossOutput
from learner.functional.preferences import by_prompt

if TYPE_CHECKING:
    from torch import Tensor

    from contracts.rollout import Rollout


class Preferences(FromData):
    """Base of preference algorithms; a group has a prompt's responses, the best with the lowest lease id."""

    in_pairs: ClassVar[bool] = True  # a prompt has two responses

    minibatch_size: int | None = Field(default=32, ge=1)  # responses; None: the whole batch

    def credit(self, inputs: CreditInputs) -> Credit:
        """Return each response's reward at each of its tokens."""
        worth_BT = inputs.rewards_BT.sum(-1)[:, None] * inputs.mask_BT
        return Credit(worth_BT, worth_BT)

    def check(self, rollouts: Sequence[Rollout]) -> None:
        """Check that each prompt has several responses, all different; two of them if `in_pairs`.

        Raises:
            LearnerError: a prompt has one response, equal ones or too many; the message names the first.
        """
        super().check(rollouts)
        groups = by_group(rollouts)
        alone = [group for group in groups if len(group) < 2]
        equal = [group for group in groups if len({rollout.tokens for rollout in group}) < len(group)]
        for faulty, what, expected in (
            (alone, "one response alone", "at least two, which can be compared"),
            (equal, "equal responses", "different ones, because none of equal ones is better"),
        ):
            if faulty:
                first = faulty[0][0]
                raise LearnerError(
                    f"{len(faulty)} of {len(groups)} prompts have {what}, the first is {first.prompt.id} "
                    f"(group {first.group}); expected {expected}. Leave those prompts out"
                )
        if self.in_pairs and (more := [group for group in groups if len(group) > 2]):
            raise LearnerError(
                f"{len(more)} of {len(groups)} prompts have more than two responses, the first is "
                f"{more[0][0].prompt.id} with {len(more[0])}; expected pairs. Longer lists are for "
                "algorithm=pro"
            )


def pairs(values_N: Tensor, inputs: LossInputs, *, mean: bool = False) -> Tensor:
    """Return sums or means over the tokens of each prompt's responses, (B, 2): chosen and rejected."""
    return by_prompt(values_N, inputs.rows_N, inputs.group_size, mean=mean, in_all=inputs.num_responses)


def of_pairs(losses_B: Tensor, rewards_B2: Tensor, inputs: LossInputs) -> LossOutput:
    """Return the mean loss over pairs, and metrics of the rewards that the policy implies."""
    num_pairs = inputs.num_rollouts / inputs.group_size
    loss = losses_B.sum() / num_pairs
    chosen_B, rejected_B = rewards_B2.detach().unbind(-1)
    metrics = {
        "loss/policy": loss.detach(),
        "rewards/chosen": chosen_B.sum() / num_pairs,
        "rewards/rejected": rejected_B.sum() / num_pairs,
        "rewards/margin": (chosen_B - rejected_B).sum() / num_pairs,
        "rewards/accuracy": (chosen_B > rejected_B).sum() / num_pairs,
    }
    return LossOutput(loss, metrics)


def by_group(rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
    """Return the rollouts of each group, in their order."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return list(groups.values())
