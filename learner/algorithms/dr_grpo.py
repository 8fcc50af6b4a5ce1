"""Dr. GRPO: GRPO without its bias towards long wrong answers and towards easy or hard prompts.

Liu et al. 2025 (arXiv 2503.20783), §3.2: no deviation divides advantages, no length divides the loss, and
there is no KL. Rate, one update of a batch and 8 responses per prompt are those of the authors' run
(sail-sg/understand-r1-zero, qwen2.5-math-7b.sh). Needs `rollout.group_size` of 2 or more; the default is 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from learner.algorithms.base import CreditInputs, KLSettings, Traits
from learner.algorithms.critic_free import CriticFree
from learner.functional.aggregation import Aggregation

if TYPE_CHECKING:
    from torch import Tensor


class DrGRPO(CriticFree):
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts", online=True, mixes_data="weighted", default_group_size=8
    )

    aggregation: Aggregation = "constant"
    kl: KLSettings = KLSettings(placement="loss", estimator="k3_exact", coefficient=0.0, measure_every=8)

    def advantages(self, inputs: CreditInputs) -> Tensor:
        return self.compared(inputs, scale=False)
