"""Base of algorithms that imitate texts: cross-entropy of response and end token, and optionally a KL."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from learner.algorithms.base import Algorithm, KLSettings, OptimizerSettings
from learner.algorithms.inputs import Credit, CreditInputs, LossInputs, LossOutput


class Imitation(Algorithm):
    """Settings and loss of supervised fine-tuning, return-conditioned imitation and rejection sampling."""

    learning_rate: float = Field(default=1e-5, gt=0)
    critic_learning_rate: None = None  # there is no critic to train
    num_epochs: int = Field(default=1, ge=1)
    minibatch_size: int | None = Field(default=32, ge=1)  # rollouts; None: the whole batch
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    target_kl: None = None  # a likelihood has no old policy from which to drift
    entropy_coef: float = Field(default=0.0, ge=0)
    optimizer: OptimizerSettings = OptimizerSettings(weight_decay=0.0)
    kl: KLSettings = KLSettings(placement="loss", coefficient=0.0)

    @model_validator(mode="after")
    def _no_reference(self) -> Self:
        if not self.traits.online and (self.kl.coefficient or self.kl.target):
            raise ValueError(
                f"got kl.coefficient={self.kl.coefficient} and kl.target={self.kl.target}; supervised "
                "fine-tuning has no reference to stay near: expected kl.coefficient=0 and no target"
            )
        return self

    @property
    def needs_entropy(self) -> bool:
        return self.entropy_coef > 0

    def credit(self, inputs: CreditInputs) -> Credit:
        return Credit(inputs.rewards_BT, inputs.rewards_BT)

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return (-Σ log π(token) + β Σ KL - c_e Σ H) / num_tokens."""
        n = inputs.num_tokens
        policy = -inputs.logprobs_N.sum() / n
        loss, metrics = policy, {"loss/policy": policy.detach()}
        if inputs.kl_N is not None:
            kl = inputs.kl_N.sum() / n
            loss = loss + inputs.kl_coefficient * kl
            metrics["loss/kl"] = kl.detach()
        if inputs.entropies_N is not None:
            loss = loss - self.entropy_coef * inputs.entropies_N.sum() / n
        return LossOutput(loss, metrics)
