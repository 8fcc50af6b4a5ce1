"""A-LoL reference-free: raise the likelihood of responses with a positive advantage, in proportion to it.

Baheti et al. 2024 (arXiv 2305.14718). The reference policy serves only for the values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from learner.algorithms.base import LossInputs, Traits
from learner.algorithms.offline import Offline, Worth
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class ALoLReferenceFree(Offline):
    traits: ClassVar[Traits] = Traits(learns_from="data")

    # Responses with a negative advantage lose probability, unbounded, as in LoL-RL's Helpful-Harmless code
    negative_advantages: bool = False

    @property
    def worth(self) -> Worth:
        return "advantage"

    @property
    def only_positive(self) -> bool:
        return not self.negative_advantages

    def token_losses(self, inputs: LossInputs) -> Tensor:
        return offline.a_lol_ref_free(
            inputs.logprobs_N, inputs.advantages_N, negative_advantages=self.negative_advantages
        )
