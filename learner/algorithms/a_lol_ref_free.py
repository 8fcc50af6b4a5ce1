"""A-LoL reference-free: the likelihood of responses that are better than the reference's own, times how much.

Baheti et al. 2024 (arXiv 2305.14718). The reference gave the values, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.algorithms.base import LossInputs
from learner.algorithms.offline import Offline, Worth
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class ALoLReferenceFree(Offline):
    # Worse responses are pushed down, without a bound, as LoL-RL's Helpful-Harmless code has it
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
