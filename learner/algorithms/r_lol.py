"""R-LoL: the reward, times π/π_ref of the whole response, times its likelihood; a KL if wanted.

Baheti et al. 2024 (arXiv 2305.14718): A-LoL without a baseline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from learner.algorithms.base import LossInputs
from learner.algorithms.from_data import reference_of
from learner.algorithms.offline import ImportanceWeighted
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class RLoL(ImportanceWeighted):
    kl_beta: float = Field(default=0.0, ge=0)  # 0: no KL
    # unbiased: a true regulariser beside the weights; log_ratio: LoL-RL's, in the place of weights, see
    # `a_lol_kl`
    kl_form: offline.KLForm = "unbiased"

    def token_losses(self, inputs: LossInputs) -> Tensor:
        given = inputs.logprobs_N, reference_of(inputs), inputs.advantages_N, inputs.rows_N
        if not self.kl_beta:
            return offline.r_lol(*given, ppo_clip=self.ppo_clip)
        return offline.r_lol_kl(*given, kl_beta=self.kl_beta, form=self.kl_form, ppo_clip=self.ppo_clip)

    def metrics(self, inputs: LossInputs) -> dict[str, Tensor]:
        found = super().metrics(inputs)
        if self.kl_beta:
            kl_N = offline.kl_term(inputs.logprobs_N.detach(), reference_of(inputs), self.kl_form)
            found["loss/kl"] = self.over_responses(kl_N, inputs)
        return found
