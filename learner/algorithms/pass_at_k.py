"""Pass@k training: GRPO for the reward that at least one of k responses passes.

Chen et al. 2025 (arXiv 2508.10751), with its analytical advantages (§2.4): the means over all sets of k of a
group. A prompt that is nearly always solved teaches little, so texts stay varied. Needs a
`rollout.group_size` above k; the default is 8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from contracts.errors import LearnerError
from learner.algorithms.base import CreditInputs, KLSettings, Traits
from learner.algorithms.critic_free import CriticFree
from learner.functional.groups import pass_at_k_advantages

if TYPE_CHECKING:
    from torch import Tensor

    from contracts.rollout import Rollout

ROUNDING = 1e-6  # a sum of weighted rewards may be too small by this


class PassAtK(CriticFree):
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts", online=True, mixes_data="weighted", default_group_size=8
    )

    k: int = Field(default=4, ge=1)  # responses of a set
    pass_at: float = 1.0  # least reward of a passing response
    kl: KLSettings = KLSettings(placement="loss", estimator="k3_exact", coefficient=0.0, measure_every=8)

    @model_validator(mode="after")
    def _rewards_pass_or_fail(self) -> Self:
        return self._expect_no_kl_in_reward("a response passes or fails by its reward alone")

    @property
    def uses_token_rewards(self) -> bool:
        return False

    def check(self, rollouts: Sequence[Rollout]) -> None:
        """Check that some group has more than k responses, because a smaller group has only one set.

        Raises:
            LearnerError: no group has.
        """
        largest = max(Counter(rollout.group for rollout in rollouts).values())
        if largest <= self.k:
            raise LearnerError(
                f"got groups of at most {largest} responses with algorithm.k={self.k}, so a group is one set "
                f"and teaches nothing; expected rollout.group_size={2 * self.k}, or a smaller algorithm.k"
            )

    def teaching(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Return the rollouts of groups with passing and failing sets, if other groups are dropped."""
        if not self.drop_constant_groups:
            return list(rollouts)
        passed, failed = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
        for rollout in rollouts:
            for role in rollout.roles:
                passes = self._earned(rollout, role)[0] >= self._least
                (passed if passes else failed)[rollout.group, role] += 1
        teach = {group for group, count in failed.items() if passed[group] and count >= self.k}
        return [one for one in rollouts if any((one.group, role) in teach for role in one.roles)]

    @property
    def _least(self) -> float:
        return self.pass_at - ROUNDING

    def advantages(self, inputs: CreditInputs) -> Tensor:
        passes_B = self._discounted(inputs.rewards_BT, inputs).sum(-1) >= self._least
        return pass_at_k_advantages(passes_B, inputs.groups_B, self.k)
