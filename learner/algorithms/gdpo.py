"""GDPO: GRPO with several rewards, each normalised in its group before the weighted sum.

Liu et al. 2026 (arXiv 2601.05242). If the sum is normalised afterwards, different mixtures of rewards get the
same advantage. `reward.LABEL.weight` are the weights; a clip and a threshold act before. The rest is GRPO.
Needs `rollout.group_size` of 2 or more; the default is 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import model_validator

from contracts.errors import LearnerError
from learner.algorithms.base import CreditInputs, KLSettings, Traits
from learner.algorithms.critic_free import CriticFree
from learner.functional.aggregation import Aggregation
from learner.functional.groups import decoupled_advantages

if TYPE_CHECKING:
    from torch import Tensor

    from contracts.rollout import Rollout


class GDPO(CriticFree):
    traits: ClassVar[Traits] = Traits(learns_from="rollouts", online=True, default_group_size=8)

    aggregation: Aggregation = "sequence_mean"
    kl: KLSettings = KLSettings(placement="loss", estimator="k3_exact", coefficient=0.04)

    @model_validator(mode="after")
    def _rewards_are_whole(self) -> Self:
        if self.turn_gamma != 1:
            raise ValueError(
                f"got turn_gamma={self.turn_gamma}, but only each reward's sum over turns is known; expected "
                "turn_gamma=1"
            )
        return self._expect_no_kl_in_reward("each reward is normalised separately, without a KL")

    @property
    def uses_token_rewards(self) -> bool:
        return False

    def check(self, rollouts: Sequence[Rollout]) -> None:
        """Check that the policy has one role, because a reward's share for each of several is unknown.

        Raises:
            LearnerError: the policy has several roles.
        """
        roles = sorted({role for rollout in rollouts for role in rollout.roles})
        if len(roles) > 1:
            raise LearnerError(
                f"got rollouts of the roles {', '.join(roles)}; algorithm=gdpo normalises each reward of a "
                "whole rollout, so it expects one role: take algorithm=grpo"
            )

    def _earned(self, rollout: Rollout, role: str) -> tuple[float, ...]:
        terms = sorted(rollout.reward_terms.items())
        return (*super()._earned(rollout, role), *(term.value for _, term in terms))

    def advantages(self, inputs: CreditInputs) -> Tensor:
        if inputs.terms is not None:
            return decoupled_advantages(inputs.terms.values_BK, inputs.terms.weights_BK, inputs.groups_B)
        only_B1 = self.scores(inputs)[:, None]  # only one reward, or rollouts without parts
        return decoupled_advantages(only_B1, only_B1 * 0 + 1, inputs.groups_B)
