"""What algorithms that learn from a data set share: no model but the policy, one reward a response."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from contracts.errors import LearnerError
from contracts.settings import Settings
from learner.algorithms.base import Credit, CreditInputs, LearnsFrom, LossInputs, OptimizerSettings
from learner.kl_control import KLSettings

if TYPE_CHECKING:
    from torch import Tensor

    from contracts.rollout import Rollout


class FromData(Settings):
    """The optimiser of LoL-RL (arXiv 2305.14718), and credit: what a response earned, at each of its tokens.

    A response comes as a rollout whose `behavior_logprobs` are the reference's.
    """

    learns_from: ClassVar[LearnsFrom] = "data"

    learning_rate: float = Field(default=2e-4, gt=0)
    num_epochs: int = Field(default=1, ge=1)  # passes over a batch; those over the data set are the run's
    minibatch_size: int | None = Field(default=16, ge=1)  # responses; None: the whole batch
    max_grad_norm: float | None = Field(default=0.3, gt=0)
    optimizer: OptimizerSettings = OptimizerSettings(weight_decay=0.01, decays="all", eps=1e-6)

    @property
    def critic_learning_rate(self) -> None:
        """There is no critic to train."""

    @property
    def target_kl(self) -> None:
        """There is no old policy to drift from."""

    @property
    def kl(self) -> KLSettings:
        """None: its estimates need a reference in memory. What `a_lol_kl` has is its own."""
        return KLSettings(placement="loss", coefficient=0.0)

    @property
    def online(self) -> bool:
        return False

    @property
    def uses_critic(self) -> bool:
        return False

    @property
    def needs_entropy(self) -> bool:
        return False

    @property
    def needs_rewards(self) -> bool:
        return False

    @property
    def needs_values(self) -> bool:
        """What the reference is expected to earn on a prompt."""
        return False

    @property
    def needs_reference(self) -> bool:
        """The reference's log-probabilities of a response."""
        return False

    def credit(self, inputs: CreditInputs) -> Credit:
        worth_BT = self.worth_of(inputs)[:, None] * inputs.mask_BT
        return Credit(worth_BT, worth_BT)

    def worth_of(self, inputs: CreditInputs) -> Tensor:
        """What each response counts, (B,): its reward."""
        return inputs.rewards_BT.sum(-1)

    def prepare_minibatch(self, advantages_N: Tensor) -> Tensor:
        return advantages_N

    def check(self, rollouts: Sequence[Rollout]) -> None:
        """Refuse responses that the loss can't work with.

        Raises:
            LearnerError: what is missing, of how many.
        """
        if self.needs_rewards:
            require_rewards(rollouts)
        if self.needs_values:
            require_values(rollouts)
        if self.needs_reference:
            require_reference(rollouts)


def require_rewards(rollouts: Sequence[Rollout]) -> None:
    """Raises LearnerError where a response has no reward, or one that is no number."""
    unscored = [all(turn.reward is None for turn in each.turns) for each in rollouts]
    known = [None if lacks else each.total_reward for each, lacks in zip(rollouts, unscored, strict=True)]
    require_known(rollouts, known, "reward")


def require_values(rollouts: Sequence[Rollout]) -> None:
    """Raises LearnerError where a prompt has no value: what the reference is expected to earn on it."""
    require_known(rollouts, [each.value for each in rollouts], "value of its prompt")


def require_known(rollouts: Sequence[Rollout], numbers: Sequence[float | None], what: str) -> None:
    missing = [i for i, number in enumerate(numbers) if number is None]
    wrong = [i for i, number in enumerate(numbers) if number is not None and not math.isfinite(number)]
    if missing or wrong:
        first = rollouts[min(missing + wrong)]
        raise LearnerError(
            f"of {len(rollouts)} responses {len(missing)} have no {what} and {len(wrong)} one that is NaN or "
            f"infinite, the first to prompt {first.prompt.id} (lease {first.lease_id}); expected a finite "
            "one of each: score them again, or leave them out"
        )


def require_reference(rollouts: Sequence[Rollout]) -> None:
    """Raises LearnerError where nobody asked the reference; log-probabilities are all 0 then."""
    if not any(any(turn.behavior_logprobs) for each in rollouts for turn in each.turns):
        raise LearnerError(
            f"none of {len(rollouts)} responses has log-probabilities of the reference; expected them as "
            "each turn's behavior_logprobs, from one pass of the reference over the data"
        )


def reference_of(inputs: LossInputs) -> Tensor:
    """log π_ref of the micro-batch's tokens."""
    assert inputs.ref_logprobs_N is not None, "what learns from data brings the reference's log-probabilities"
    return inputs.ref_logprobs_N
