"""Identity preference optimisation: move a pair's margin to 1 / (2β), and no further.

Azar et al. 2023 (arXiv 2310.12036). If all preferences agree, DPO pulls a pair apart without end, but
IPO does not. The paper gives no defaults for language models: rate and τ are those of ContextualAI/HALOs.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from learner.algorithms.base import LossInputs, LossOutput, Traits
from learner.algorithms.from_data import reference_of
from learner.algorithms.preferences import Preferences, of_pairs, pairs
from learner.functional import preferences


class IPO(Preferences):
    traits: ClassVar[Traits] = Traits(learns_from="data", reference=True, whole_groups=True)

    learning_rate: float = Field(default=5e-6, gt=0)
    beta: float = Field(default=0.1, gt=0)  # the paper's τ

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return the mean loss over pairs, from the responses' means over tokens."""
        logprobs_B2 = pairs(inputs.logprobs_N, inputs, mean=True)
        ref_B2 = pairs(reference_of(inputs), inputs, mean=True)
        losses_B = preferences.ipo(logprobs_B2, ref_B2, beta=self.beta)
        return of_pairs(losses_B, preferences.implicit_rewards(logprobs_B2, ref_B2, beta=self.beta), inputs)
