"""Group relative policy optimisation: compare a response with the others to its prompt, without a critic.

Shao et al. 2024 (arXiv 2402.03300). `dr_grpo`, `dapo`, `gspo` and `cispo` derive from it. Needs
`rollout.group_size` of 2 or more; the default is 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from learner.algorithms.base import CreditInputs, KLSettings, Traits
from learner.algorithms.critic_free import CriticFree
from learner.functional.aggregation import Aggregation

if TYPE_CHECKING:
    from torch import Tensor


class GRPO(CriticFree):
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts", online=True, mixes_data="weighted", default_group_size=8
    )

    aggregation: Aggregation = "sequence_mean"
    scale_by_deviation: bool = True
    kl: KLSettings = KLSettings(placement="loss", estimator="k3_exact", coefficient=0.04)

    def advantages(self, inputs: CreditInputs) -> Tensor:
        return self.compared(inputs, scale=self.scale_by_deviation)
