"""Direct preference optimisation: make the chosen response likelier than the rejected one; also IPO.

Rafailov et al. 2023 (arXiv 2305.18290); `loss_type=ipo` is `algorithm=ipo`.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from learner.algorithms.base import LossInputs, LossOutput, Traits
from learner.algorithms.from_data import reference_of
from learner.algorithms.preferences import Preferences, of_pairs, pairs
from learner.functional import preferences


class DPO(Preferences):
    traits: ClassVar[Traits] = Traits(learns_from="data", reference=True, whole_groups=True)

    loss_type: Literal["sigmoid", "ipo"] = "sigmoid"
    beta: float = Field(default=0.1, gt=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)  # how often a preference is wrong
    reference_free: bool = False  # count the reference's probabilities of both texts as equal

    @model_validator(mode="after")
    def _only_the_sigmoid_is_smoothed(self) -> Self:
        if self.label_smoothing and self.loss_type == "ipo":
            raise ValueError(
                f"got label_smoothing={self.label_smoothing} with loss_type=ipo, which limits the margin "
                "anyway; expected label_smoothing=0, or loss_type=sigmoid"
            )
        return self

    @property
    def needs_reference(self) -> bool:
        return self.traits.reference and not self.reference_free

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return the mean loss over pairs, from sums over tokens or, for IPO, means."""
        mean = self.loss_type == "ipo"
        logprobs_B2 = pairs(inputs.logprobs_N, inputs, mean=mean)
        ref_B2 = None if self.reference_free else pairs(reference_of(inputs), inputs, mean=mean)
        if self.loss_type == "ipo":
            losses_B = preferences.ipo(logprobs_B2, ref_B2, beta=self.beta)
        else:
            losses_B = preferences.dpo(
                logprobs_B2, ref_B2, beta=self.beta, label_smoothing=self.label_smoothing
            )
        return of_pairs(losses_B, preferences.implicit_rewards(logprobs_B2, ref_B2, beta=self.beta), inputs)
