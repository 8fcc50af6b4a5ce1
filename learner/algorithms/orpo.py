"""Odds ratio preference optimisation: imitate the chosen response, and raise its odds over the other's.

Hong et al. 2024 (arXiv 2403.07691). It needs no reference and no supervised stage before it. λ and the rate
are those of the authors' Mistral-ORPO-β (xfactlab/orpo, run_mistral_orpo_beta.sh); trl also has λ = 0.1.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from learner.algorithms.base import LossInputs, LossOutput, Traits
from learner.algorithms.preferences import Preferences, of_pairs, pairs
from learner.functional import preferences


class ORPO(Preferences):
    traits: ClassVar[Traits] = Traits(learns_from="data", whole_groups=True)

    learning_rate: float = Field(default=5e-6, gt=0)
    beta: float = Field(default=0.1, ge=0)  # weight of the odds ratio, the paper's λ

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return the mean loss over pairs, from the responses' means over tokens."""
        means_B2 = pairs(inputs.logprobs_N, inputs, mean=True)
        losses_B = preferences.orpo(means_B2, weight=self.beta)
        return of_pairs(losses_B, preferences.implicit_rewards(means_B2, None, beta=self.beta), inputs)
