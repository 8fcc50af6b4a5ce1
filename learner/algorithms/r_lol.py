"""R-LoL: the reward, times π/π_ref of the whole response, times its likelihood; optionally a KL penalty.

Baheti et al. 2024 (arXiv 2305.14718): A-LoL without a baseline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from learner.algorithms.base import LossInputs, Traits
from learner.algorithms.from_data import reference_of
from learner.algorithms.offline import Offline
from learner.algorithms.offline_metrics import ratio_metrics
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class RLoL(Offline):
    # A weight is a product over all of a response's tokens.
    traits: ClassVar[Traits] = Traits(learns_from="data", reference=True, whole_responses=True)

    # Weights stay within 1 ± this; null: no bounds. 0 is refused: in LoL-RL it means no bounds
    ppo_clip: float | None = Field(default=0.9, gt=0)
    kl_beta: float = Field(default=0.0, ge=0)  # 0: no KL
    # unbiased: a true regulariser beside the weights; log_ratio: as in LoL-RL, instead of weights, see
    #     `a_lol_kl`
    kl_form: offline.KLForm = "unbiased"

    def token_losses(self, inputs: LossInputs) -> Tensor:
        arguments = inputs.logprobs_N, reference_of(inputs), inputs.advantages_N, inputs.rows_N
        if not self.kl_beta:
            return offline.r_lol(*arguments, ppo_clip=self.ppo_clip)
        return offline.r_lol_kl(*arguments, kl_beta=self.kl_beta, form=self.kl_form, ppo_clip=self.ppo_clip)

    def metrics(self, inputs: LossInputs) -> dict[str, Tensor]:
        ratios_N = offline.sequence_ratios(inputs.logprobs_N, reference_of(inputs), inputs.rows_N)
        metrics = super().metrics(inputs)
        metrics |= ratio_metrics(inputs, ratios_N, self.ppo_clip, whole_responses=True)
        if self.kl_beta:
            kl_N = offline.kl_term(inputs.logprobs_N.detach(), reference_of(inputs), self.kl_form)
            metrics["loss/kl"] = self.over_responses(kl_N, inputs)
        return metrics
