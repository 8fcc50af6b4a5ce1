"""Base of algorithms without a critic: one advantage for all tokens of a response.

If a reward scores tokens, algorithms that compare tokens credit each token with the rewards after it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from contracts.roles import earned
from learner.algorithms.base import Algorithm, KLSettings, OptimizerSettings
from learner.algorithms.inputs import Credit, CreditInputs, LossInputs, LossOutput
from learner.functional.aggregation import Aggregation, sum_by_response, token_weights
from learner.functional.groups import group_advantages, group_token_advantages, returns_to_go
from learner.functional.high_entropy import high_entropy
from learner.functional.kl import k3
from learner.functional.ratios import clipped_surrogate
from learner.functional.rewards import RewardScale, in_units
from learner.functional.turns import turn_numbers
from learner.optimization.entropy_control import EntropyRule

if TYPE_CHECKING:
    from torch import Tensor

    from contracts.rollout import Rollout


class CriticFree(Algorithm):
    """Common settings and clipped loss of GRPO and its variants, RLOO and REINFORCE++."""

    learning_rate: float = Field(default=1e-6, gt=0)
    critic_learning_rate: None = None  # there is no critic to train
    num_epochs: int = Field(default=1, ge=1)
    minibatch_size: int | None = Field(default=None, ge=1)  # rollouts; None: the whole batch
    clip_range: float = Field(default=0.2, gt=0)
    clip_range_high: float | None = Field(default=None, gt=0)  # None: clip_range; DAPO: 0.28
    aggregation: Aggregation = "token_mean"
    turn_gamma: float = Field(default=1.0, ge=0, le=1)  # discount of a reward from a turn to the turn before
    reward_scale: RewardScale = "deviation"
    drop_constant_groups: bool = False  # groups of equal rewards teach nothing: leave them out of the mean
    max_refills: int = Field(default=0, ge=0)  # rounds of further prompts that replace them in an iteration
    filter_truncated: bool = False  # no loss on responses that the limit of tokens cut off
    # Share of the batch's tokens, with the highest entropy, that the policy's loss trains on; 1: all
    top_entropy_share: float = Field(default=1.0, gt=0, le=1)
    entropy_coef: float = Field(default=0.0, ge=0)  # weight of the entropy bonus; with a target: at first
    entropy_target: float | None = Field(default=None, gt=0)  # nats a token; None: a fixed coefficient
    entropy_step: float = Field(default=0.005, gt=0)  # change of the coefficient in each update
    entropy_coef_max: float = Field(default=1.0, gt=0)
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    target_kl: float | None = Field(default=None, gt=0)
    optimizer: OptimizerSettings = OptimizerSettings(weight_decay=0.0)
    kl: KLSettings = KLSettings()

    @model_validator(mode="after")
    def _only_groups_are_dropped(self) -> Self:
        if self.max_refills and not self.drop_constant_groups:
            raise ValueError(
                f"got max_refills={self.max_refills} with drop_constant_groups=false, which leaves no place "
                "to fill; expected drop_constant_groups=true with it, or max_refills=0"
            )
        if self.drop_constant_groups and not self.traits.default_group_size:
            raise ValueError(
                "got drop_constant_groups=true, and this algorithm compares no groups; expected false"
            )
        return self

    @model_validator(mode="after")
    def _single_tokens_are_left_out(self) -> Self:
        if self.top_entropy_share < 1 and self.traits.whole_responses:
            raise ValueError(
                f"got top_entropy_share={self.top_entropy_share}, where a ratio is of a whole "
                "response; expected top_entropy_share=1, or ratios of tokens, as algorithm=grpo has"
            )
        return self

    def _expect_no_kl_in_reward(self, reason: str) -> Self:
        """Return itself, or raise a ValueError with the reason if a KL acts in the reward."""
        if self.kl.placement == "reward" and self.kl.coefficient:
            raise ValueError(f"got kl.placement=reward, and {reason}; expected kl.placement=loss")
        return self

    @property
    def reads_entropies(self) -> bool:
        return self.top_entropy_share < 1

    @property
    def entropy_rule(self) -> EntropyRule:
        return EntropyRule(self.entropy_coef, self.entropy_target, self.entropy_step, self.entropy_coef_max)

    @property
    def needs_entropy(self) -> bool:
        return self.entropy_rule.adds_bonus

    @property
    def turn_discount(self) -> float:
        return self.turn_gamma

    @property
    def selects(self) -> bool:
        return self.drop_constant_groups

    @property
    def refills(self) -> int:
        return self.max_refills

    @property
    def leaves_out_truncated(self) -> bool:
        return self.filter_truncated

    def teaching(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Return the rollouts of groups in which a role's rewards differ, if other groups are dropped."""
        if not self.drop_constant_groups:
            return list(rollouts)
        rewards: dict[tuple[int, str], set[tuple[float, ...]]] = {}
        for rollout in rollouts:
            for role in rollout.roles:
                rewards.setdefault((rollout.group, role), set()).add(self._earned(rollout, role))
        return [
            rollout
            for rollout in rollouts
            if any(len(rewards[rollout.group, role]) > 1 for role in rollout.roles)
        ]

    def _earned(self, rollout: Rollout, role: str) -> tuple[float, ...]:
        turns = [turn for turn in rollout.turns if turn.role == role]
        return earned(turns, by_token=self.uses_token_rewards, discount=self.turn_gamma)

    def select(
        self, rollouts: Sequence[Rollout], elite: Sequence[Rollout]
    ) -> tuple[list[Rollout], list[Rollout]]:
        """Leave out groups of equal rewards if the options say so, but never all groups."""
        return self.teaching(rollouts) or list(rollouts), []

    @abstractmethod
    def advantages(self, inputs: CreditInputs) -> Tensor:
        """Return one advantage for each response (B,) or each token (B, T)."""

    def response_ratios(self, inputs: LossInputs) -> Tensor | None:
        """Return π/π_old of whole responses (B,), to be clipped; None: clip each token's ratio."""
        return None

    def token_rewards(self, inputs: CreditInputs) -> Tensor:
        """Return r - β·KL of each token, (B, T)."""
        rewards_BT = in_units(inputs.rewards_BT, self.reward_scale, inputs.reward_deviation)
        return rewards_BT - inputs.kl_coefficient * inputs.kl_BT

    def scores(self, inputs: CreditInputs) -> Tensor:
        """Return each rollout's score, Σ γ_turn^(turns before) (r - β·KL) over its tokens, (B,)."""
        return self._discounted(self.token_rewards(inputs), inputs).sum(-1)

    def _task_rewards(self, inputs: CreditInputs) -> Tensor:
        """Return γ_turn^(turns before) r of each token, (B, T)."""
        return self._discounted(
            in_units(inputs.rewards_BT, self.reward_scale, inputs.reward_deviation), inputs
        )

    def _discounted(self, rewards_BT: Tensor, inputs: CreditInputs) -> Tensor:
        turns_BT = turn_numbers(inputs.positions_BT, inputs.mask_BT)
        return rewards_BT * self.turn_gamma ** turns_BT.to(rewards_BT.dtype)

    def compared(self, inputs: CreditInputs, *, scale: bool) -> Tensor:
        """Compare scores within groups, (B,); if a reward scored tokens, compare returns-to-go, (B, T)."""
        scores_B = self.scores(inputs)
        if not inputs.has_token_rewards:
            return group_advantages(scores_B, inputs.groups_B, scale=scale)
        rewards_BT = self._task_rewards(inputs)
        # A penalty on the KL or the length belongs to the whole response.
        penalty_B = scores_B - rewards_BT.sum(-1)
        returns_BT = returns_to_go(rewards_BT) + penalty_B[:, None]
        return group_token_advantages(returns_BT, inputs.mask_BT.bool(), inputs.groups_B, scale=scale)

    def credit(self, inputs: CreditInputs) -> Credit:
        advantages = self.advantages(inputs)
        if advantages.ndim == 1:
            advantages = advantages[:, None].expand_as(inputs.rewards_BT)
        advantages_BT = advantages * inputs.mask_BT
        cut_B = inputs.truncated_B if self.filter_truncated else None
        if self.reads_entropies and inputs.entropies_BT is not None:
            trained_BT = inputs.mask_BT if cut_B is None else inputs.mask_BT & ~cut_B[:, None]
            forks_BT = high_entropy(inputs.entropies_BT, trained_BT, self.top_entropy_share)
            advantages_BT = advantages_BT * forks_BT
        return Credit(advantages_BT, advantages_BT, trains_B=None if cut_B is None else ~cut_B)

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return Σ w (surrogate + β KL) - c_e Σ H / num_tokens, with w a token's weight by `aggregation`."""
        weights_N = token_weights(
            inputs.lengths_N,
            self.aggregation,
            num_tokens=inputs.num_tokens,
            num_rollouts=inputs.num_rollouts,
            max_tokens=inputs.max_tokens,
        )
        policy = self.surrogate(inputs, weights_N)
        loss, metrics = policy, {"loss/policy": policy.detach(), **self.drift(inputs)}
        metrics |= self.parts(inputs, weights_N)
        if inputs.kl_N is not None:
            kl = (weights_N * inputs.kl_N).sum()
            loss = loss + inputs.kl_coefficient * kl
            metrics["loss/kl"] = kl.detach()
        if inputs.entropies_N is not None:  # a mean over tokens for any aggregation, as in trl
            now = inputs.entropy_coefficient
            bonus = self.entropy_coef if now is None else now
            loss = loss - bonus * inputs.entropies_N.sum() / inputs.num_tokens
        return LossOutput(loss, metrics)

    def parts(self, inputs: LossInputs, weights_N: Tensor) -> dict[str, Tensor]:
        """Return further metrics of the surrogate, by name; here none."""
        return {}

    def surrogate(self, inputs: LossInputs, weights_N: Tensor) -> Tensor:
        """Return Σ w · -min(ρA, clip(ρ)A) over tokens, or the mean over responses with one ρ each."""
        if (ratio_B := self.response_ratios(inputs)) is not None:
            shares_N = inputs.advantages_N / inputs.lengths_N
            advantages_B = sum_by_response(shares_N, inputs.rows_N, inputs.num_responses)
            return self._clipped(ratio_B, advantages_B, inputs.importance_B).sum() / inputs.num_rollouts
        ratio_N = (inputs.logprobs_N - inputs.old_logprobs_N).exp()
        return (weights_N * self._clipped(ratio_N, inputs.advantages_N, inputs.importance_N)).sum()

    def _clipped(self, ratio: Tensor, advantages: Tensor, importance: Tensor | None) -> Tensor:
        loss = clipped_surrogate(ratio, advantages, self.clip_range, clip_range_high=self.clip_range_high)
        return loss if importance is None else loss * importance

    def drift(self, inputs: LossInputs) -> dict[str, Tensor]:
        """Measure by the ratios how far the policy is from the policy that sampled."""
        n, logprobs_N = inputs.num_tokens, inputs.logprobs_N.detach()
        approx_kl = k3(inputs.old_logprobs_N, logprobs_N).sum() / n
        ratio = (logprobs_N - inputs.old_logprobs_N).exp()
        if (ratio_B := self.response_ratios(inputs)) is not None:
            ratio, n = ratio_B.detach(), inputs.num_rollouts
        outside = (ratio < 1 - self.clip_range) | (ratio > 1 + (self.clip_range_high or self.clip_range))
        return {"approx_kl": approx_kl, "clip_fraction": outside.sum() / n, "ratio/mean": ratio.sum() / n}
