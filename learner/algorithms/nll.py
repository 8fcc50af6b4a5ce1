"""Negative log-likelihood: imitate every response of a data set alike.

`sampling_strategy=good_random` imitates only those with an advantage above 0 (filtered behaviour cloning).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.algorithms.base import LossInputs
from learner.algorithms.offline import Offline, Worth
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class NLL(Offline):
    @property
    def worth(self) -> Worth:
        """An advantage where epochs are drawn by it; the loss has no use for one."""
        return "advantage" if self.sampling_strategy else "nothing"

    def token_losses(self, inputs: LossInputs) -> Tensor:
        return offline.nll(inputs.logprobs_N)
