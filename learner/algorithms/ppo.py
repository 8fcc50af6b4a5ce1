"""Proximal policy optimisation: clipped ratios, GAE, a critic, a KL penalty in the reward.

Schulman et al. 2017 (arXiv 1707.06347), with Stable-Baselines3's defaults as RL4LMs uses them; the
token-level KL penalty to the reference follows Ziegler et al. 2019 (arXiv 1909.08593).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from learner.algorithms.actor_critic import ActorCriticAlgorithm
from learner.algorithms.base import LossInputs, LossOutput, Traits
from learner.functional.ratios import clipped_policy


class PPO(ActorCriticAlgorithm):
    traits: ClassVar[Traits] = Traits(learns_from="rollouts", online=True, critic=True, mixes_data="weighted")

    learning_rate: float = Field(default=3e-4, gt=0)
    num_epochs: int = Field(default=10, ge=1)
    minibatch_size: int | None = Field(default=64, ge=1)  # rollouts; None: the whole batch
    clip_range: float = Field(default=0.2, gt=0)
    dual_clip: float | None = Field(default=None, gt=1)  # bounds the loss of bad tokens, see ratios.py
    target_kl: float | None = Field(default=None, gt=0)  # stop the epochs when the drift exceeds 1.5 × this

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return (Σ surrogate + c_v Σ (R - V)² - c_e Σ H + β Σ KL) / num_tokens."""
        surrogate_N, drift = clipped_policy(
            inputs.logprobs_N,
            inputs.old_logprobs_N,
            inputs.advantages_N,
            num_tokens=inputs.num_tokens,
            clip_range=self.clip_range,
            dual_clip=self.dual_clip,
        )
        return self.with_critic(inputs, surrogate_N, drift)
