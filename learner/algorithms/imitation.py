"""What algorithms that imitate texts share: cross-entropy on the response and its end, and a KL if wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from contracts.settings import Settings
from learner.algorithms.base import Credit, CreditInputs, LossInputs, LossOutput, MixesData, OptimizerSettings
from learner.kl_control import KLSettings

if TYPE_CHECKING:
    from torch import Tensor


class Imitation(Settings):
    """Settings and loss of supervised fine-tuning and rejection sampling."""

    mixes_data: ClassVar[MixesData | None] = "plainly"

    learning_rate: float = Field(default=1e-5, gt=0)
    critic_learning_rate: None = None  # there is no critic to train
    num_epochs: int = Field(default=1, ge=1)
    minibatch_size: int | None = Field(default=32, ge=1)  # rollouts; None: the whole batch
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    target_kl: None = None  # a likelihood has no old policy to drift from
    entropy_coef: float = Field(default=0.0, ge=0)
    optimizer: OptimizerSettings = OptimizerSettings(weight_decay=0.0)
    kl: KLSettings = KLSettings(placement="loss", coefficient=0.0)

    @property
    def online(self) -> bool:
        raise NotImplementedError

    @property
    def uses_critic(self) -> bool:
        return False

    @property
    def needs_entropy(self) -> bool:
        return self.entropy_coef > 0

    def credit(self, inputs: CreditInputs) -> Credit:
        return Credit(inputs.rewards_BT, inputs.rewards_BT)

    def prepare_minibatch(self, advantages_N: Tensor) -> Tensor:
        return advantages_N

    def loss(self, inputs: LossInputs) -> LossOutput:
        """(-Σ log π(token) + β Σ KL - c_e Σ H) / num_tokens."""
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
