"""Direct preference optimisation: make the chosen response likelier than the rejected one; also IPO.

Rafailov et al. 2023 (arXiv 2305.18290); `loss=ipo`: Azar et al. 2024 (arXiv 2310.12036).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from contracts.errors import LearnerError
from learner.algorithms.base import LossInputs, LossOutput, Traits
from learner.algorithms.from_data import reference_of
from learner.algorithms.preferences import Preferences, by_group
from learner.functional import preferences

if TYPE_CHECKING:
    from torch import Tensor

    from contracts.rollout import Rollout


class DPO(Preferences):
    traits: ClassVar[Traits] = Traits(learns_from="data", reference=True, whole_groups=True)

    loss_type: Literal["sigmoid", "ipo"] = "sigmoid"
    beta: float = Field(default=0.1, gt=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)  # how often a preference is wrong
    reference_free: bool = False  # as if the reference policy gave both the same probability

    @model_validator(mode="after")
    def _only_the_sigmoid_is_smoothed(self) -> Self:
        if self.label_smoothing and self.loss_type == "ipo":
            raise ValueError(
                f"got label_smoothing={self.label_smoothing} with loss_type=ipo, whose margin has an end "
                "anyway; expected label_smoothing=0, or loss_type=sigmoid"
            )
        return self

    @property
    def needs_reference(self) -> bool:
        return self.traits.reference and not self.reference_free

    def check(self, rollouts: Sequence[Rollout]) -> None:
        super().check(rollouts)
        groups = by_group(rollouts)
        if more := [group for group in groups if len(group) > 2]:
            raise LearnerError(
                f"{len(more)} of {len(groups)} prompts have more than two responses, the first is "
                f"{more[0][0].prompt.id} with {len(more[0])}; expected pairs. Longer lists are for "
                "algorithm=pro"
            )

    def loss(self, inputs: LossInputs) -> LossOutput:
        """The mean over pairs."""
        num_pairs = inputs.num_rollouts / inputs.group_size
        logprobs_B2 = self.of_responses(inputs.logprobs_N, inputs)
        ref_B2 = None if self.reference_free else self.of_responses(reference_of(inputs), inputs)
        if self.loss_type == "ipo":
            losses_B = preferences.ipo(logprobs_B2, ref_B2, beta=self.beta)
        else:
            losses_B = preferences.dpo(
                logprobs_B2, ref_B2, beta=self.beta, label_smoothing=self.label_smoothing
            )
        loss = losses_B.sum() / num_pairs
        rewards_B2 = preferences.implicit_rewards(logprobs_B2, ref_B2, beta=self.beta)
        chosen_B, rejected_B = rewards_B2.unbind(-1)
        metrics = {
            "loss/policy": loss.detach(),
            "rewards/chosen": chosen_B.sum() / num_pairs,
            "rewards/rejected": rejected_B.sum() / num_pairs,
            "rewards/margin": (chosen_B - rejected_B).sum() / num_pairs,
            "rewards/accuracy": (chosen_B > rejected_B).sum() / num_pairs,
        }
        return LossOutput(loss, metrics)

    def of_responses(self, logprobs_N: Tensor, inputs: LossInputs) -> Tensor:
        """Sums over tokens, or IPO's means, (B, 2)."""
        return preferences.by_prompt(
            logprobs_N, inputs.rows_N, inputs.group_size, mean=self.loss_type == "ipo"
        )
