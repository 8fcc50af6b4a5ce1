"""Odds ratio preference optimisation: imitate the chosen response, and raise its odds over the other's.

Hong et al. 2024 (arXiv 2403.07691). There is no reference, and no supervised stage before it. λ and the rate
are those of the authors' Mistral-ORPO-β (xfactlab/orpo, run_mistral_orpo_beta.sh); λ is 0.1 in trl, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from learner.algorithms.base import LossInputs, LossOutput, Traits
from learner.algorithms.preferences import Preferences, of_pairs, pairs, require_pairs
from learner.functional import preferences

if TYPE_CHECKING:
    from contracts.rollout import Rollout


class ORPO(Preferences):
    traits: ClassVar[Traits] = Traits(learns_from="data", whole_groups=True)

    learning_rate: float = Field(default=5e-6, gt=0)
    beta: float = Field(default=0.1, ge=0)  # weight of the odds ratio, the paper's λ

    def check(self, rollouts: Sequence[Rollout]) -> None:
        super().check(rollouts)
        require_pairs(rollouts)

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return the mean over pairs; a response counts by its mean over tokens."""
        means_B2 = pairs(inputs.logprobs_N, inputs, mean=True)
        losses_B = preferences.orpo(means_B2, weight=self.beta)
        return of_pairs(losses_B, preferences.implicit_rewards(means_B2, None, beta=self.beta), inputs)
