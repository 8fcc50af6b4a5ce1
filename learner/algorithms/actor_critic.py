"""Base of algorithms with a critic: credit by GAE, the value loss, the entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from learner.algorithms.base import Algorithm, KLSettings, OptimizerSettings, ValueLevel
from learner.algorithms.inputs import Credit, CreditInputs, LossInputs, LossOutput, expecting
from learner.functional.advantages import generalized_advantages, whiten
from learner.functional.ratios import value_loss
from learner.functional.rewards import RewardScale, in_units, spread_over_tokens, whitened
from learner.functional.turns import turn_advantages, turn_ends

if TYPE_CHECKING:
    from torch import Tensor


class ActorCriticAlgorithm(Algorithm):
    """Common settings and formulas of PPO, NLPO, A2C and TRPO, without the policy's loss."""

    learning_rate: float
    critic_learning_rate: float | None = Field(default=None, gt=0)  # None: learning_rate
    num_epochs: int
    minibatch_size: int | None
    minibatch_tokens: int | None = Field(default=None, ge=1)  # take whole rollouts until they have this many
    gamma: float = Field(default=1.0, ge=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    turn_gamma: float = Field(default=1.0, ge=0, le=1)  # times gamma, from a turn to the next
    turn_lambda: float | None = Field(default=None, ge=0, le=1)  # λ from a turn to the next; None: gae_lambda
    # action_first, action_mean: one advantage a turn, from its first token's value or from their mean
    value_level: ValueLevel = "token"
    bootstrap_truncated: bool = True  # count a truncated rollout's future as the critic's value; False: as 0
    advantage_whitening: Literal["none", "minibatch", "batch"] = "minibatch"
    entropy_coef: float = Field(default=0.0, ge=0)
    value_coef: float = Field(default=0.5, ge=0)
    value_clip_range: float | None = Field(default=None, gt=0)
    value_clip_pessimistic: bool = False  # True: the larger of clipped and unclipped (OpenRL, trl)
    huber_delta: float | None = Field(default=None, gt=0)  # larger value errors count linearly (OpenRL: 10)
    normalize_values: bool = True  # the critic predicts returns in units of all returns so far
    max_grad_norm: float | None = Field(default=0.5, gt=0)  # limit for the actor and for the critic
    target_kl: float | None = None
    reward_scale: RewardScale = "deviation"
    normalize_rewards: bool = False  # RL4LMs' norm_reward: whiten token rewards, zeros included
    spread_rewards: bool = False  # spread rewards equally over a turn's tokens, not where they are earned
    optimizer: OptimizerSettings = OptimizerSettings()
    kl: KLSettings = KLSettings()

    @property
    def minibatch_counts(self) -> int | None:
        return self.minibatch_tokens

    @model_validator(mode="before")
    @classmethod
    def _minibatches_have_one_size(cls, options: Any) -> Any:
        if not isinstance(options, Mapping) or options.get("minibatch_tokens") is None:
            return options
        if (size := options.get("minibatch_size")) is not None:
            raise ValueError(
                f"got minibatch_size={size} and minibatch_tokens={options['minibatch_tokens']}; "
                "expected one: set algorithm.minibatch_size=null"
            )
        return {**options, "minibatch_size": None}

    @model_validator(mode="after")
    def _pessimism_needs_a_range(self) -> Self:
        if self.value_clip_pessimistic and self.value_clip_range is None:
            raise ValueError(
                "got value_clip_pessimistic=true without a value_clip_range; the larger of the clipped and "
                "the unclipped loss needs one; OpenRL has value_clip_range=0.2"
            )
        return self

    @property
    def needs_entropy(self) -> bool:
        return self.entropy_coef > 0

    @property
    def credits(self) -> ValueLevel:
        return self.value_level

    @property
    def uses_token_rewards(self) -> bool:
        return super().uses_token_rewards and not self.spread_rewards

    @property
    def turn_discount(self) -> float:
        return self.turn_gamma

    @property
    def bootstraps(self) -> bool:
        return self.bootstrap_truncated

    @property
    def normalizes_values(self) -> bool:
        return self.normalize_values

    def credit(self, inputs: CreditInputs) -> Credit:
        """Subtract β·KL from token rewards, then apply GAE over tokens or turns."""
        mask_BT = inputs.mask_BT.bool()
        rewards_BT = in_units(inputs.rewards_BT, self.reward_scale, inputs.reward_deviation)
        if self.spread_rewards:
            rewards_BT = spread_over_tokens(rewards_BT, mask_BT, inputs.positions_BT)
        rewards_BT = rewards_BT - inputs.kl_coefficient * inputs.kl_BT
        if self.normalize_rewards:
            rewards_BT = whitened(rewards_BT, mask_BT)
        if inputs.critic_is_new:
            inputs = expecting(inputs, self._mean_return(rewards_BT, inputs, mask_BT))
        advantages_BT, returns_BT = self._advantages(rewards_BT, inputs, mask_BT)
        if self.advantage_whitening == "batch":
            advantages_BT = advantages_BT.masked_scatter(mask_BT, whiten(advantages_BT[mask_BT]))
        # The critic learns only values that an advantage uses.
        first_only = self.value_level == "action_first"
        return Credit(advantages_BT, returns_BT, mask_BT & (inputs.positions_BT == 0) if first_only else None)

    def _mean_return(self, rewards_BT: Tensor, inputs: CreditInputs, mask_BT: Tensor) -> float:
        """Return the mean over all tokens of the discounted rewards from that token on."""
        whole = self.model_copy(update={"gae_lambda": 1.0, "turn_lambda": 1.0})
        zeros_BT, zeros_B = 0 * inputs.values_BT, 0 * inputs.bootstrap_B
        blank = replace(inputs, values_BT=zeros_BT, bootstrap_B=zeros_B, traces_BT=None)
        _, returns_BT = whole._advantages(rewards_BT, blank, mask_BT)
        return float(returns_BT[mask_BT].mean())

    def _advantages(self, rewards_BT: Tensor, inputs: CreditInputs, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        if self.value_level == "token":
            return generalized_advantages(
                rewards_BT,
                inputs.values_BT,
                mask_BT,
                gamma=self.gamma,
                gae_lambda=self.gae_lambda,
                ends_BT=turn_ends(inputs.positions_BT, mask_BT),
                turn_gamma=self.turn_gamma,
                turn_lambda=self.turn_lambda,
                bootstrap_B=inputs.bootstrap_B,
                traces_BT=inputs.traces_BT,
            )
        return turn_advantages(
            rewards_BT,
            inputs.values_BT,
            mask_BT,
            inputs.positions_BT,
            value="first" if self.value_level == "action_first" else "mean",
            gamma=self.gamma,
            turn_gamma=self.turn_gamma,
            turn_lambda=self.gae_lambda if self.turn_lambda is None else self.turn_lambda,
            bootstrap_B=inputs.bootstrap_B,
        )

    def prepare_minibatch(self, advantages_N: Tensor) -> Tensor:
        return whiten(advantages_N) if self.advantage_whitening == "minibatch" else advantages_N

    def with_critic(
        self, inputs: LossInputs, surrogate_N: Tensor, metrics: Mapping[str, Tensor]
    ) -> LossOutput:
        """Return (Σ surrogate - c_e Σ H + β Σ KL) / num_tokens + c_v Σ value loss / num_values."""
        policy = self.without_critic(inputs, surrogate_N, metrics)
        errors_N = self.value_error(inputs.values_N, inputs.old_values_N, inputs.returns_N)
        if inputs.value_mask_N is not None:
            errors_N = errors_N * inputs.value_mask_N
        value = errors_N.sum() / (inputs.num_values or inputs.num_tokens)
        return LossOutput(
            policy.loss + self.value_coef * value, {**policy.metrics, "loss/value": value.detach()}
        )

    def without_critic(
        self, inputs: LossInputs, surrogate_N: Tensor, metrics: Mapping[str, Tensor]
    ) -> LossOutput:
        """Return (Σ surrogate - c_e Σ H + β Σ KL) / num_tokens."""
        n = inputs.num_tokens
        if inputs.importance_N is not None:
            surrogate_N = surrogate_N * inputs.importance_N
        loss = surrogate_N.sum() / n
        parts = {"loss/policy": loss.detach()}
        if inputs.entropies_N is not None:
            loss = loss - self.entropy_coef * inputs.entropies_N.sum() / n
        if inputs.kl_N is not None:
            kl = inputs.kl_N.sum() / n
            loss = loss + inputs.kl_coefficient * kl
            parts["loss/kl"] = kl.detach()
        return LossOutput(loss, {**parts, **metrics})

    def value_error(self, values_N: Tensor, old_values_N: Tensor, returns_N: Tensor) -> Tensor:
        """Return each token's value loss, (N,), in the critic's units like all arguments."""
        return value_loss(
            values_N,
            old_values_N,
            returns_N,
            self.value_clip_range,
            pessimistic=self.value_clip_pessimistic,
            huber_delta=self.huber_delta,
        )
