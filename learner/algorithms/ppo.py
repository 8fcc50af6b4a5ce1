"""Proximal policy optimisation: clipped ratios, GAE, a critic, a KL penalty in the reward.

Schulman et al. 2017 (arXiv 1707.06347), with Stable-Baselines3's defaults as RL4LMs uses them; the
token-level KL penalty to the reference follows Ziegler et al. 2019 (arXiv 1909.08593).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from contracts.settings import Settings
from learner.algorithms.base import Credit, CreditInputs, LossInputs, LossOutput, OptimizerSettings
from learner.functional.advantages import generalized_advantages, whiten
from learner.functional.kl import k3
from learner.functional.ratios import clipped_surrogate, value_loss
from learner.kl_control import KLSettings

if TYPE_CHECKING:
    from torch import Tensor


class PPO(Settings):
    learning_rate: float = Field(default=3e-4, gt=0)
    critic_learning_rate: float | None = Field(default=None, gt=0)  # None: as learning_rate
    num_epochs: int = Field(default=10, ge=1)
    minibatch_size: int | None = Field(default=64, ge=1)  # rollouts; None: the whole batch
    gamma: float = Field(default=0.99, ge=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    clip_range: float = Field(default=0.2, gt=0)
    value_clip_range: float | None = Field(default=None, gt=0)
    normalize_advantages: bool = True  # over each minibatch
    entropy_coef: float = Field(default=0.0, ge=0)
    value_coef: float = Field(default=0.5, ge=0)
    max_grad_norm: float | None = Field(default=0.5, gt=0)  # the actor's and the critic's, each for itself
    target_kl: float | None = Field(default=None, gt=0)  # stop the epochs when the drift exceeds 1.5 × this
    normalize_rewards: bool = False  # RL4LMs' norm_reward: whiten token rewards, zeros included
    optimizer: OptimizerSettings = OptimizerSettings()
    kl: KLSettings = KLSettings()

    @property
    def online(self) -> bool:
        return True

    @property
    def needs_entropy(self) -> bool:
        return self.entropy_coef > 0

    def credit(self, inputs: CreditInputs) -> Credit:
        mask_BT = inputs.mask_BT.bool()
        rewards_BT = inputs.rewards_BT - inputs.kl_coefficient * inputs.kl_BT
        if self.normalize_rewards:
            rewards_BT = rewards_BT.masked_scatter(mask_BT, whiten(rewards_BT[mask_BT]))
        advantages_BT, returns_BT = generalized_advantages(
            rewards_BT, inputs.values_BT, mask_BT, gamma=self.gamma, gae_lambda=self.gae_lambda
        )
        return Credit(advantages_BT, returns_BT)

    def prepare_minibatch(self, advantages_N: Tensor) -> Tensor:
        return whiten(advantages_N) if self.normalize_advantages else advantages_N

    def loss(self, inputs: LossInputs) -> LossOutput:
        """(Σ surrogate + c_v Σ (R - V)² - c_e Σ H) / num_tokens."""
        n = inputs.num_tokens
        ratio_N = (inputs.logprobs_N - inputs.old_logprobs_N).exp()
        policy = clipped_surrogate(ratio_N, inputs.advantages_N, self.clip_range).sum() / n
        value = value_loss(inputs.values_N, inputs.old_values_N, inputs.returns_N, self.value_clip_range)
        value = value.sum() / n
        loss = policy + self.value_coef * value
        if inputs.entropies_N is not None and self.entropy_coef > 0:
            loss = loss - self.entropy_coef * inputs.entropies_N.sum() / n
        metrics = {
            "loss/policy": policy.detach(),
            "loss/value": value.detach(),
            "approx_kl": k3(inputs.old_logprobs_N, inputs.logprobs_N.detach()).sum() / n,
            "clip_fraction": ((ratio_N.detach() - 1).abs() > self.clip_range).sum() / n,
            "ratio/mean": ratio_N.detach().sum() / n,
        }
        return LossOutput(loss, metrics)
