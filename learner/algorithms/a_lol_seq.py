"""A-LoL sequence: A-LoL with a weight π/π_ref of its own for each token of a response.

Baheti et al. 2024 (arXiv 2305.14718).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from learner.algorithms.base import LossInputs, Traits
from learner.algorithms.from_data import reference_of
from learner.algorithms.offline import Offline, Worth
from learner.algorithms.offline_metrics import ratio_metrics
from learner.functional import offline

if TYPE_CHECKING:
    from torch import Tensor


class ALoLSequence(Offline):
    traits: ClassVar[Traits] = Traits(learns_from="data", reference=True)

    # Weights stay within 1 ± this; null: no bounds. 0 is refused: in LoL-RL it means weights of 1,
    # which are a_lol_ref_free's here
    ppo_clip: float | None = Field(default=0.9, gt=0)

    @property
    def worth(self) -> Worth:
        return "advantage"

    @property
    def only_positive(self) -> bool:
        return True

    def token_losses(self, inputs: LossInputs) -> Tensor:
        return offline.a_lol_seq(
            inputs.logprobs_N, reference_of(inputs), inputs.advantages_N, ppo_clip=self.ppo_clip
        )

    def metrics(self, inputs: LossInputs) -> dict[str, Tensor]:
        ratios_N = offline.token_ratios(inputs.logprobs_N, reference_of(inputs))
        told = ratio_metrics(inputs, ratios_N, self.ppo_clip, whole_responses=False)
        return super().metrics(inputs) | told
