"""Clipped importance sampling: REINFORCE with clipped weights, so that every token keeps its gradient.

MiniMax 2025 (arXiv 2506.13585), §3.1: no lower bound, loss by tokens, no KL, dynamic sampling as in DAPO. The
paper does not give its upper bound; 5 comes from Khatri et al. 2025 (arXiv 2510.13786), which trl recommends.
Needs `rollout.group_size` of 2 or more; the default is 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from learner.algorithms.base import CreditInputs, KLSettings, LossInputs, Traits
from learner.algorithms.critic_free import CriticFree
from learner.functional.ratios import clipped_weights

if TYPE_CHECKING:
    from torch import Tensor


class CISPO(CriticFree):
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts", online=True, mixes_data="weighted", default_group_size=16
    )

    clip_range: float = Field(default=1.0, gt=0)  # weights of at least 1 - this; 1: no bound
    clip_range_high: float | None = Field(default=4.0, gt=0)  # weights of at most 1 + this
    drop_constant_groups: bool = True
    max_refills: int = Field(default=9, ge=0)
    kl: KLSettings = KLSettings(placement="loss", estimator="k3_exact", coefficient=0.0, measure_every=8)

    def advantages(self, inputs: CreditInputs) -> Tensor:
        return self.compared(inputs, scale=True)

    def surrogate(self, inputs: LossInputs, weights_N: Tensor) -> Tensor:
        """Return Σ w · -sg[clip(ρ)] A log π over tokens."""
        ratios_N = (inputs.logprobs_N - inputs.old_logprobs_N).exp()
        clipped_N = clipped_weights(ratios_N, self.clip_range, self.clip_range_high)
        loss_N = -clipped_N * inputs.advantages_N * inputs.logprobs_N
        if inputs.importance_N is not None:
            loss_N = loss_N * inputs.importance_N
        return (weights_N * loss_N).sum()
