"""R-LoL: the reward, times π/π_ref of the whole response, times its likelihood.

Baheti et al. 2024 (arXiv 2305.14718): A-LoL without a baseline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.algorithms.base import LossInputs
from learner.algorithms.from_data import reference_of
from learner.algorithms.offline import ImportanceWeighted
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class RLoL(ImportanceWeighted):
    def token_losses(self, inputs: LossInputs) -> Tensor:
        return offline.r_lol(
            inputs.logprobs_N,
            reference_of(inputs),
            inputs.advantages_N,
            inputs.rows_N,
            ppo_clip=self.ppo_clip,
        )
