"""What an algorithm is: credit for tokens, and a loss that is a share of the batch's.

Shapes: _B rollouts, _T the model's tokens of a rollout, left-aligned, _N the model's tokens of a
micro-batch, flat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from contracts.settings import Settings
from learner.kl_control import KLSettings

if TYPE_CHECKING:
    from torch import Tensor


class OptimizerSettings(Settings):
    """AdamW; biases and norms never decay."""

    weight_decay: float = Field(default=1e-6, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)


@dataclass(frozen=True, slots=True)
class CreditInputs:
    """One batch of scored rollouts; `rewards_BT` are the task's, without the KL penalty."""

    rewards_BT: Tensor
    kl_BT: Tensor  # log π_old - log π_ref, the sampled token's
    values_BT: Tensor
    mask_BT: Tensor
    kl_coefficient: float


@dataclass(frozen=True, slots=True)
class Credit:
    advantages_BT: Tensor
    returns_BT: Tensor


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The model's tokens of one micro-batch, and the size of the whole minibatch it belongs to."""

    logprobs_N: Tensor
    old_logprobs_N: Tensor
    advantages_N: Tensor
    returns_N: Tensor
    values_N: Tensor
    old_values_N: Tensor
    entropies_N: Tensor | None
    num_tokens: int  # of the whole minibatch: the denominator, so that splitting changes nothing


@dataclass(frozen=True, slots=True)
class LossOutput:
    """`loss` and every metric are shares: summed over a minibatch's micro-batches they give its value."""

    loss: Tensor
    metrics: Mapping[str, Tensor]


class Algorithm(Protocol):
    """A settings class with these fields and methods; its defaults are the published method."""

    learning_rate: float
    critic_learning_rate: float | None
    num_epochs: int
    minibatch_size: int | None
    max_grad_norm: float | None
    target_kl: float | None
    optimizer: OptimizerSettings
    kl: KLSettings

    @property
    def online(self) -> bool: ...  # scores rollouts (old log-probabilities, values, reference) first

    @property
    def needs_entropy(self) -> bool: ...  # with its gradient

    def credit(self, inputs: CreditInputs) -> Credit: ...

    def prepare_minibatch(self, advantages_N: Tensor) -> Tensor: ...  # over the whole minibatch

    def loss(self, inputs: LossInputs) -> LossOutput: ...


METHODS = ("credit", "prepare_minibatch", "loss")
