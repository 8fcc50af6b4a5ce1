"""Group sequence policy optimisation: GRPO with the ratio and the clipping of a whole response.

Zheng et al. 2025 (arXiv 2507.18071). The ratio is the geometric mean of a response's token ratios, so its
range is a thousandth of GRPO's: §5.1 of version 2, as in trl's and verl's recipes. There is no KL. The
authors make four updates of a batch, so set `minibatch_size` to a quarter of it. Needs `rollout.group_size`
of 2 or more; the default is 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from learner.algorithms.base import CreditInputs, KLSettings, LossInputs, Traits
from learner.algorithms.critic_free import CriticFree
from learner.functional.aggregation import Aggregation, sum_by_response
from learner.functional.groups import group_advantages

if TYPE_CHECKING:
    from torch import Tensor


class GSPO(CriticFree):
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts",
        online=True,
        mixes_data="weighted",
        whole_responses=True,  # the ratio is one mean over all tokens of a rollout
        mean_ratio=True,
        default_group_size=8,
    )

    clip_range: float = Field(default=3e-4, gt=0)
    clip_range_high: float | None = Field(default=4e-4, gt=0)
    aggregation: Aggregation = "sequence_mean"  # how a KL in the loss is averaged
    kl: KLSettings = KLSettings(placement="loss", estimator="k3_exact", coefficient=0.0, measure_every=8)

    def advantages(self, inputs: CreditInputs) -> Tensor:
        return group_advantages(self.scores(inputs), inputs.groups_B, scale=True)

    def response_ratios(self, inputs: LossInputs) -> Tensor:
        """Return (π(y)/π_old(y))^(1/|y|) of each response, (B,)."""
        log_ratios_N = (inputs.logprobs_N - inputs.old_logprobs_N) / inputs.lengths_N
        return sum_by_response(log_ratios_N, inputs.rows_N, inputs.num_responses).exp()
