"""REINFORCE with a leave-one-out baseline: the whole response is one action, no critic.

Ahmadian et al. 2024 (arXiv 2402.14740), with trl's clipped ratio of whole responses for further epochs.
Needs `rollout.group_size` of 2 or more; 8 unless given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from learner.algorithms.base import CreditInputs, LossInputs
from learner.algorithms.critic_free import CriticFree
from learner.functional.aggregation import Aggregation, sum_by_response
from learner.functional.groups import leave_one_out
from learner.functional.ratios import clipped_surrogate
from learner.kl_control import KLSettings

if TYPE_CHECKING:
    from torch import Tensor


class RLOO(CriticFree):
    default_group_size: ClassVar[int] = 8  # responses of each prompt
    whole_responses: ClassVar[bool] = True  # the ratio is one product over all of a rollout's tokens

    aggregation: Aggregation = "sequence_mean"  # of the KL in the loss, where it is there
    kl: KLSettings = KLSettings(coefficient=0.05)

    def advantages(self, inputs: CreditInputs) -> Tensor:
        return leave_one_out(self.scores(inputs), inputs.groups_B)

    def surrogate(self, inputs: LossInputs, weights_N: Tensor) -> Tensor:
        """Mean over responses of -min(ρA, clip(ρ)A) with ρ the ratio of the whole response."""
        ratio_B = self.response_ratios(inputs)
        advantages_B = sum_by_response(inputs.advantages_N / inputs.lengths_N, inputs.rows_N)
        losses_B = clipped_surrogate(
            ratio_B, advantages_B, self.clip_range, clip_range_high=self.clip_range_high
        )
        if inputs.importance_B is not None:
            losses_B = losses_B * inputs.importance_B
        return losses_B.sum() / inputs.num_rollouts

    def drift(self, inputs: LossInputs) -> dict[str, Tensor]:
        """It is the ratio of a whole response that is clipped."""
        ratio_B, n = self.response_ratios(inputs).detach(), inputs.num_rollouts
        clipped = {"clip_fraction": self.outside(ratio_B).sum() / n, "ratio/mean": ratio_B.sum() / n}
        return super().drift(inputs) | clipped

    def response_ratios(self, inputs: LossInputs) -> Tensor:
        """π/π_old of whole responses, (B,)."""
        return sum_by_response(inputs.logprobs_N - inputs.old_logprobs_N, inputs.rows_N).exp()
