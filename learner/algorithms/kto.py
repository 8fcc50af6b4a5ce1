"""Kahneman-Tversky optimisation: responses are good or bad by themselves, so no pairs are needed.

Ethayarajh et al. 2024 (arXiv 2402.01306). The policy before the update estimates the reference point
KL(π‖π_ref) once an iteration, from responses to other prompts. The rate, `beta` and both weights are those of
the authors' code (ContextualAI/HALOs, config/).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from learner.algorithms.base import LossInputs, LossOutput, Traits
from learner.algorithms.from_data import reference_of, require_needs, require_rewards
from learner.algorithms.preferences import Preferences
from learner.functional.aggregation import sum_by_response
from learner.functional.preferences import kto

if TYPE_CHECKING:
    from contracts.rollout import Rollout


class KTO(Preferences):
    traits: ClassVar[Traits] = Traits(
        learns_from="data", reference=True, whole_responses=True, labels=True, mismatched_kl=True
    )

    learning_rate: float = Field(default=5e-6, gt=0)
    beta: float = Field(default=0.1, gt=0)
    # The paper: (desirable_weight · good responses) : (undesirable_weight · others) from 1 : 1 to 1.5 : 1
    desirable_weight: float = Field(default=1.0, ge=0)
    undesirable_weight: float = Field(default=1.0, ge=0)

    def check(self, rollouts: Sequence[Rollout]) -> None:
        require_needs(self, rollouts)
        require_rewards(rollouts)  # the labels

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return the mean loss over responses; advantages are their labels, old values the KL."""
        rows, lengths_N = (inputs.rows_N, inputs.num_responses), inputs.lengths_N
        ratios_B = sum_by_response(inputs.logprobs_N - reference_of(inputs), *rows)
        good_B = sum_by_response(inputs.advantages_N / lengths_N, *rows) > 0.5
        point_B = sum_by_response(inputs.old_values_N / lengths_N, *rows)
        losses_B = kto(
            ratios_B,
            good_B,
            point_B,
            beta=self.beta,
            desirable_weight=self.desirable_weight,
            undesirable_weight=self.undesirable_weight,
        )
        n = inputs.num_rollouts
        loss = losses_B.sum() / n
        gains_B = self.beta * (ratios_B - point_B).detach() * (2.0 * good_B - 1.0)
        metrics = {
            "loss/policy": loss.detach(),
            "rewards/margin": gains_B.sum() / n,
            "rewards/accuracy": (gains_B > 0).sum() / n,
            "rewards/reference_point": self.beta * point_B.sum() / n,
        }
        return LossOutput(loss, metrics)
