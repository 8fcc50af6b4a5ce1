"""Advantage actor-critic: one plain policy-gradient step on the whole batch.

Mnih et al. 2016 (arXiv 1602.01783), synchronous, with Stable-Baselines3's defaults as RL4LMs uses them.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from learner.algorithms.actor_critic import ActorCriticAlgorithm
from learner.algorithms.base import LossInputs, LossOutput, Traits
from learner.functional.kl import k3


class A2C(ActorCriticAlgorithm):
    traits: ClassVar[Traits] = Traits(learns_from="rollouts", online=True, critic=True, mixes_data="weighted")

    learning_rate: float = Field(default=7e-4, gt=0)
    num_epochs: Literal[1] = 1  # more epochs would need ratios to the policy that sampled
    minibatch_size: None = None  # the whole batch
    minibatch_tokens: None = None
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    advantage_whitening: Literal["none", "minibatch", "batch"] = "none"
    target_kl: None = None  # one step can't stop early

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return (-Σ A log π + c_v Σ (R - V)² - c_e Σ H + β Σ KL) / num_tokens."""
        drift = k3(inputs.old_logprobs_N, inputs.logprobs_N.detach()).sum() / inputs.num_tokens
        return self.with_critic(inputs, -inputs.advantages_N * inputs.logprobs_N, {"approx_kl": drift})
