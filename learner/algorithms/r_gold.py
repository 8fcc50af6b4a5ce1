"""Reward-GOLD: weighted behaviour cloning in which a token's weight is its probability by the policy.

Pang & He 2021 (arXiv 2009.07839), with a response's reward instead of returns, as in LoL-RL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from learner.algorithms.base import LossInputs, Traits
from learner.algorithms.offline import Offline
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class RGold(Offline):
    traits: ClassVar[Traits] = Traits(learns_from="data")

    floor: float = Field(default=0.1, ge=0, le=1)  # least weight of a token

    def token_losses(self, inputs: LossInputs) -> Tensor:
        return offline.r_gold(inputs.logprobs_N, inputs.advantages_N, floor=self.floor)
