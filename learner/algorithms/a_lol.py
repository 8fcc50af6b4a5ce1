"""A-LoL: learn from responses that are better than the reference's own, by π/π_ref of the whole response.

Baheti et al. 2024 (arXiv 2305.14718). The advantage is the reward less the value of the prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.algorithms.base import LossInputs
from learner.algorithms.from_data import reference_of
from learner.algorithms.offline import ImportanceWeighted, Worth
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class ALoL(ImportanceWeighted):
    @property
    def worth(self) -> Worth:
        return "advantage"

    @property
    def only_positive(self) -> bool:
        return True

    def token_losses(self, inputs: LossInputs) -> Tensor:
        return offline.a_lol(
            inputs.logprobs_N,
            reference_of(inputs),
            inputs.advantages_N,
            inputs.rows_N,
            ppo_clip=self.ppo_clip,
        )
