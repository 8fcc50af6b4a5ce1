"""SAPO: GRPO with a soft gate instead of clipping, and two temperatures: for good and for bad tokens.

Gao et al. 2025 (arXiv 2511.20347), with its temperatures. Bad tokens fade sooner, because their gradients
spread over the whole vocabulary. A token's weight falls smoothly with the distance of its ratio from 1 and
never to 0. Needs `rollout.group_size` of 2 or more; the default is 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from learner.algorithms.base import CreditInputs, KLSettings, LossInputs, Traits
from learner.algorithms.critic_free import CriticFree
from learner.functional.aggregation import Aggregation
from learner.functional.ratios import soft_gate

if TYPE_CHECKING:
    from torch import Tensor


class SAPO(CriticFree):
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts", online=True, mixes_data="weighted", default_group_size=8
    )

    temperature_positive: float = Field(default=1.0, gt=0)  # τ of tokens with an advantage above 0
    temperature_negative: float = Field(default=1.05, gt=0)  # τ of all other tokens
    aggregation: Aggregation = "sequence_mean"
    kl: KLSettings = KLSettings(placement="loss", estimator="k3_exact", coefficient=0.0, measure_every=8)

    def advantages(self, inputs: CreditInputs) -> Tensor:
        return self.compared(inputs, scale=True)

    def surrogate(self, inputs: LossInputs, weights_N: Tensor) -> Tensor:
        """Return Σ w · -f(ρ) A over tokens. The range `clip_range` only defines `clip_fraction`."""
        ratio_N = (inputs.logprobs_N - inputs.old_logprobs_N).exp()
        gate_N = soft_gate(ratio_N, inputs.advantages_N, self.temperature_positive, self.temperature_negative)
        loss_N = -gate_N * inputs.advantages_N
        if inputs.importance_N is not None:
            loss_N = loss_N * inputs.importance_N
        return (weights_N * loss_N).sum()
