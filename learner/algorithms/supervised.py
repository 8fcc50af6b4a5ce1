"""Supervised fine-tuning: the log-likelihood of the response and its end-of-sequence token, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from contracts.settings import Settings
from learner.algorithms.base import Credit, CreditInputs, LossInputs, LossOutput, OptimizerSettings
from learner.kl_control import KLSettings

if TYPE_CHECKING:
    from torch import Tensor


class Supervised(Settings):
    learning_rate: float = Field(default=1e-5, gt=0)
    critic_learning_rate: float | None = None  # there is no critic to train
    num_epochs: int = Field(default=1, ge=1)
    minibatch_size: int | None = Field(default=32, ge=1)
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    target_kl: float | None = None
    optimizer: OptimizerSettings = OptimizerSettings(weight_decay=0.0)
    kl: KLSettings = KLSettings(coefficient=0.0)

    @property
    def online(self) -> bool:
        return False

    @property
    def needs_entropy(self) -> bool:
        return False

    def credit(self, inputs: CreditInputs) -> Credit:
        return Credit(inputs.rewards_BT, inputs.rewards_BT)

    def prepare_minibatch(self, advantages_N: Tensor) -> Tensor:
        return advantages_N

    def loss(self, inputs: LossInputs) -> LossOutput:
        """-Σ log π(token) / num_tokens."""
        loss = -inputs.logprobs_N.sum() / inputs.num_tokens
        return LossOutput(loss, {"loss/policy": loss.detach()})
