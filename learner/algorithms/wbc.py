"""Weighted behaviour cloning: a response's likelihood, times its reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.algorithms.base import LossInputs
from learner.algorithms.offline import Offline
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class WBC(Offline):
    def token_losses(self, inputs: LossInputs) -> Tensor:
        return offline.wbc(inputs.logprobs_N, inputs.advantages_N)
