"""REINFORCE with a leave-one-out baseline: the whole response is one action, no critic.

Ahmadian et al. 2024 (arXiv 2402.14740), with trl's clipped ratio of whole responses for further epochs. Needs
`rollout.group_size` of 2 or more; the default is 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from learner.algorithms.base import CreditInputs, KLSettings, LossInputs, Traits
from learner.algorithms.critic_free import CriticFree
from learner.functional.aggregation import Aggregation, sum_by_response
from learner.functional.groups import leave_one_out

if TYPE_CHECKING:
    from torch import Tensor


class RLOO(CriticFree):
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts",
        online=True,
        mixes_data="weighted",
        whole_responses=True,  # the ratio is one product over all tokens of a rollout
        default_group_size=8,
    )

    aggregation: Aggregation = "sequence_mean"  # how a KL in the loss is averaged
    kl: KLSettings = KLSettings(coefficient=0.05)

    def advantages(self, inputs: CreditInputs) -> Tensor:
        return leave_one_out(self.scores(inputs), inputs.groups_B)

    def response_ratios(self, inputs: LossInputs) -> Tensor:
        """Return the product of ratios over each response's tokens, (B,)."""
        log_ratios_N = inputs.logprobs_N - inputs.old_logprobs_N
        return sum_by_response(log_ratios_N, inputs.rows_N, inputs.num_responses).exp()
