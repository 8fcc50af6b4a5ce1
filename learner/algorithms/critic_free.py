"""What algorithms without a critic share: one advantage a response, the same for all of its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from contracts.settings import Settings
from learner.algorithms.base import Credit, CreditInputs, LossInputs, LossOutput, MixesData, OptimizerSettings
from learner.functional.aggregation import Aggregation, token_weights
from learner.functional.kl import k3
from learner.functional.ratios import clipped_surrogate
from learner.functional.turns import turn_numbers
from learner.kl_control import KLSettings

if TYPE_CHECKING:
    from torch import Tensor


class CriticFree(Settings):
    """Settings and the clipped loss of GRPO, RLOO and REINFORCE++."""

    mixes_data: ClassVar[MixesData | None] = "weighted"

    learning_rate: float = Field(default=1e-6, gt=0)
    critic_learning_rate: None = None  # there is no critic to train
    num_epochs: int = Field(default=1, ge=1)
    minibatch_size: int | None = Field(default=None, ge=1)  # rollouts; None: the whole batch
    clip_range: float = Field(default=0.2, gt=0)
    clip_range_high: float | None = Field(default=None, gt=0)  # None: as clip_range; DAPO: 0.28
    aggregation: Aggregation = "token_mean"
    turn_gamma: float = Field(default=1.0, ge=0, le=1)  # what a turn earns counts so much less a turn later
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    target_kl: float | None = Field(default=None, gt=0)
    optimizer: OptimizerSettings = OptimizerSettings(weight_decay=0.0)
    kl: KLSettings = KLSettings()

    @property
    def online(self) -> bool:
        return True

    @property
    def uses_critic(self) -> bool:
        return False

    @property
    def needs_entropy(self) -> bool:
        return False

    def advantages(self, inputs: CreditInputs) -> Tensor:
        """One a response (B,), or one a token (B, T)."""
        raise NotImplementedError

    def scores(self, inputs: CreditInputs) -> Tensor:
        """What each rollout earned, Σ γ_turn^(turns before) (r - β·KL) over its tokens, (B,)."""
        rewards_BT = inputs.rewards_BT - inputs.kl_coefficient * inputs.kl_BT
        turns_BT = turn_numbers(inputs.positions_BT, inputs.mask_BT)
        return (rewards_BT * self.turn_gamma ** turns_BT.to(rewards_BT.dtype)).sum(-1)

    def credit(self, inputs: CreditInputs) -> Credit:
        advantages = self.advantages(inputs)
        if advantages.ndim == 1:
            advantages = advantages[:, None].expand_as(inputs.rewards_BT)
        advantages_BT = advantages * inputs.mask_BT
        return Credit(advantages_BT, advantages_BT)

    def prepare_minibatch(self, advantages_N: Tensor) -> Tensor:
        return advantages_N

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Σ w (surrogate + β KL), w the weight of a token by `aggregation`."""
        weights_N = token_weights(
            inputs.lengths_N,
            self.aggregation,
            num_tokens=inputs.num_tokens,
            num_rollouts=inputs.num_rollouts,
            max_tokens=inputs.max_tokens,
        )
        policy = self.surrogate(inputs, weights_N)
        loss, metrics = policy, {"loss/policy": policy.detach(), **self.drift(inputs)}
        if inputs.kl_N is not None:
            kl = (weights_N * inputs.kl_N).sum()
            loss = loss + inputs.kl_coefficient * kl
            metrics["loss/kl"] = kl.detach()
        return LossOutput(loss, metrics)

    def surrogate(self, inputs: LossInputs, weights_N: Tensor) -> Tensor:
        """Σ w · -min(ρA, clip(ρ)A), a token."""
        ratio_N = (inputs.logprobs_N - inputs.old_logprobs_N).exp()
        surrogate_N = clipped_surrogate(
            ratio_N, inputs.advantages_N, self.clip_range, clip_range_high=self.clip_range_high
        )
        if inputs.importance_N is not None:
            surrogate_N = surrogate_N * inputs.importance_N
        return (weights_N * surrogate_N).sum()

    def drift(self, inputs: LossInputs) -> dict[str, Tensor]:
        """How far the policy has gone from the one that sampled, a token."""
        n, logprobs_N = inputs.num_tokens, inputs.logprobs_N.detach()
        ratio_N = (logprobs_N - inputs.old_logprobs_N).exp()
        return {
            "approx_kl": k3(inputs.old_logprobs_N, logprobs_N).sum() / n,
            "clip_fraction": self.outside(ratio_N).sum() / n,
            "ratio/mean": ratio_N.sum() / n,
        }

    def outside(self, ratio: Tensor) -> Tensor:
        """Which ratios are beyond the clip range."""
        return (ratio < 1 - self.clip_range) | (ratio > 1 + (self.clip_range_high or self.clip_range))
