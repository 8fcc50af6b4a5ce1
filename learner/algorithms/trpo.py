"""Trust region policy optimisation: a natural-gradient step, as far as the KL to the old policy allows.

Schulman et al. 2015 (arXiv 1502.05477), with sb3-contrib's defaults as RL4LMs uses them. The step itself is
in `learner/updates/trust_region.py`.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from learner.algorithms.actor_critic import ActorCriticAlgorithm
from learner.algorithms.base import LossInputs, LossOutput, Traits


class TRPO(ActorCriticAlgorithm):
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts", online=True, critic=True, mixes_data="weighted", update="trust_region"
    )

    learning_rate: float = Field(default=1e-3, gt=0)  # the critic's rate; the policy's step has no rate
    num_epochs: int = Field(default=10, ge=1)  # passes of the critic over a batch
    minibatch_size: int | None = Field(default=128, ge=1)  # rollouts in a minibatch of the critic
    target_kl: float = Field(default=0.01, gt=0)  # the trust region, nats a token
    value_coef: float = Field(default=1.0, ge=0)  # the critic's loss stands alone
    max_grad_norm: float | None = Field(default=None, gt=0)  # limit of the critic's gradient; None: no limit
    cg_max_steps: int = Field(default=15, ge=1)
    cg_damping: float = Field(default=0.1, ge=0)
    line_search_shrinking_factor: float = Field(default=0.8, gt=0, lt=1)
    line_search_max_iter: int = Field(default=10, ge=1)

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return (-Σ ρA - c_e Σ H + β Σ KL) / num_tokens, which the step decreases; ρ = π/π_old."""
        ratio_N = (inputs.logprobs_N - inputs.old_logprobs_N).exp()
        return self.without_critic(inputs, -ratio_N * inputs.advantages_N, {})
