"""Weighted behaviour cloning: a response's likelihood, times its reward."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from learner.algorithms.base import LossInputs, Traits
from learner.algorithms.offline import Offline
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class WBC(Offline):
    traits: ClassVar[Traits] = Traits(learns_from="data")

    def token_losses(self, inputs: LossInputs) -> Tensor:
        return offline.wbc(inputs.logprobs_N, inputs.advantages_N)
