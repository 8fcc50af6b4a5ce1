"""Negative log-likelihood: imitate all responses of a data set with the same weight.

`sampling_strategy=good_random` imitates only those with an advantage above 0 (filtered behaviour cloning).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from learner.algorithms.base import LossInputs, Traits
from learner.algorithms.offline import Offline, Worth
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class NLL(Offline):
    traits: ClassVar[Traits] = Traits(learns_from="data")

    @property
    def worth(self) -> Worth:
        """Return "advantage" if a sampling strategy selects examples by their advantage, else "nothing".

        The loss does not use the advantage.
        """
        return "advantage" if self.sampling_strategy else "nothing"

    def token_losses(self, inputs: LossInputs) -> Tensor:
        return offline.nll(inputs.logprobs_N)
