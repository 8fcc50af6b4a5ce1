"""A-LoL sequence: A-LoL with a weight π/π_ref of its own for each token of a response.

Baheti et al. 2024 (arXiv 2305.14718).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from learner.algorithms.a_lol import ALoL
from learner.algorithms.base import LossInputs
from learner.algorithms.from_data import reference_of
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class ALoLSequence(ALoL):
    whole_responses: ClassVar[bool] = False

    def ratios(self, inputs: LossInputs) -> Tensor:
        return offline.token_ratios(inputs.logprobs_N, reference_of(inputs))

    def token_losses(self, inputs: LossInputs) -> Tensor:
        return offline.a_lol_seq(
            inputs.logprobs_N, reference_of(inputs), inputs.advantages_N, ppo_clip=self.ppo_clip
        )
