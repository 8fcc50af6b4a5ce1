"""Simple preference optimisation: a margin between mean log-probabilities, without a reference.

Meng et al. 2024 (arXiv 2405.14734). `beta` and `gamma` are those of the authors' code (princeton-nlp/SimPO,
simpo_config.py). The rate is from their Llama-3-8B-Base; they advise 3e-7 to 1e-6 for whole models.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from learner.algorithms.base import LossInputs, LossOutput, Traits
from learner.algorithms.preferences import Preferences, of_pairs, pairs
from learner.functional import preferences


class SimPO(Preferences):
    traits: ClassVar[Traits] = Traits(learns_from="data", whole_groups=True)

    learning_rate: float = Field(default=6e-7, gt=0)
    beta: float = Field(default=2.0, gt=0)
    gamma: float = Field(default=0.5, ge=0)  # the margin; the authors' gamma_beta_ratio=0.25 is gamma / beta

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return the mean loss over pairs, from the responses' means over tokens."""
        means_B2 = pairs(inputs.logprobs_N, inputs, mean=True)
        losses_B = preferences.simpo(means_B2, beta=self.beta, gamma=self.gamma)
        return of_pairs(losses_B, preferences.implicit_rewards(means_B2, None, beta=self.beta), inputs)
