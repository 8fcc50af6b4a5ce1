"""Base of the algorithms that learn from preferred responses, and what those of pairs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from contracts.errors import LearnerError
from learner.algorithms.base import Algorithm, KLSettings, OptimizerSettings
from learner.algorithms.from_data import LOL_RL_ADAMW, NO_KL, require_needs
from learner.algorithms.inputs import Credit, CreditInputs, LossInputs, LossOutput
from learner.functional.preferences import by_prompt

if TYPE_CHECKING:
    from torch import Tensor

    from contracts.rollout import Rollout


class Preferences(Algorithm):
    """Base of preference algorithms; a group has a prompt's responses, the best with the lowest lease id.

    Defaults that a subclass leaves are those of LoL-RL's DPO and PRO (arXiv 2305.14718), for adapters.
    """

    critic_learning_rate: ClassVar[None] = None  # there is no critic to train
    target_kl: ClassVar[None] = None  # there is no old policy to drift from
    kl: ClassVar[KLSettings] = NO_KL

    learning_rate: float = Field(default=2e-4, gt=0)
    num_epochs: int = Field(default=1, ge=1)  # passes over a batch; those over the data set are the run's
    minibatch_size: int | None = Field(default=32, ge=1)  # responses; None: the whole batch
    max_grad_norm: float | None = Field(default=0.3, gt=0)
    optimizer: OptimizerSettings = LOL_RL_ADAMW

    def credit(self, inputs: CreditInputs) -> Credit:
        """Return each response's reward, at each of its tokens."""
        worth_BT = inputs.rewards_BT.sum(-1)[:, None] * inputs.mask_BT
        return Credit(worth_BT, worth_BT)

    def check(self, rollouts: Sequence[Rollout]) -> None:
        """Check that each prompt has several responses, all different.

        Raises:
            LearnerError: a prompt has one response alone, or two equal ones.
        """
        require_needs(self, rollouts)
        groups = by_group(rollouts)
        alone = [group for group in groups if len(group) < 2]
        equal = [group for group in groups if len({each.tokens for each in group}) < len(group)]
        for faulty, what, expected in (
            (alone, "one response alone", "at least two, which can be compared"),
            (equal, "equal responses", "different ones: of the same there is no better"),
        ):
            if faulty:
                first = faulty[0][0]
                raise LearnerError(
                    f"{len(faulty)} of {len(groups)} prompts have {what}, the first is {first.prompt.id} "
                    f"(group {first.group}); expected {expected}. Leave those prompts out"
                )


def require_pairs(rollouts: Sequence[Rollout]) -> None:
    """Check that no prompt has more than two responses.

    Raises:
        LearnerError: some have more; the message counts them and names the first.
    """
    groups = by_group(rollouts)
    if more := [group for group in groups if len(group) > 2]:
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
