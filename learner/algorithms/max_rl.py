"""MaxRL: GRPO with advantages divided by the group's mean reward, towards maximum likelihood of success.

Tajwar et al. 2026 (arXiv 2602.02710). For rewards of 0 and 1, a prompt counts the more the more rarely it is
solved. More responses per prompt come closer to the gradient of log p(success). With negative rewards the
divisor is the mean of sizes. Needs `rollout.group_size` of 2 or more; the default is 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import model_validator

from learner.algorithms.base import CreditInputs, KLSettings, Traits
from learner.algorithms.critic_free import CriticFree
from learner.functional.groups import mean_normalized

if TYPE_CHECKING:
    from torch import Tensor


class MaxRL(CriticFree):
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts", online=True, mixes_data="weighted", default_group_size=8
    )

    kl: KLSettings = KLSettings(placement="loss", estimator="k3_exact", coefficient=0.0, measure_every=8)

    @model_validator(mode="after")
    def _means_are_of_rewards(self) -> Self:
        return self._expect_no_kl_in_reward("a group's mean reward is a divisor, which a KL brings near 0")

    @property
    def uses_token_rewards(self) -> bool:
        return False

    def advantages(self, inputs: CreditInputs) -> Tensor:
        return mean_normalized(self.scores(inputs), inputs.groups_B)
