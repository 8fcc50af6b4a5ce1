"""A-LoL: learn from responses that beat the reference policy's, weighted by π/π_ref of the whole response.

Baheti et al. 2024 (arXiv 2305.14718). The advantage is the reward less the value of the prompt.
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


class ALoL(Offline):
    # A weight is a product over all of a response's tokens.
    traits: ClassVar[Traits] = Traits(learns_from="data", reference=True, whole_responses=True)

    # Weights stay within 1 ± this; null: no bounds. 0 is refused: in LoL-RL it means no bounds
    ppo_clip: float | None = Field(default=0.9, gt=0)

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

    def metrics(self, inputs: LossInputs) -> dict[str, Tensor]:
        ratios_N = offline.sequence_ratios(inputs.logprobs_N, reference_of(inputs), inputs.rows_N)
        told = ratio_metrics(inputs, ratios_N, self.ppo_clip, whole_responses=True)
        return super().metrics(inputs) | told
