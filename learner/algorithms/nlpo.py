"""Natural language policy optimisation: PPO over the tokens that a mask policy finds likely.

Ramamurthy et al. 2023 (arXiv 2210.01241), §4 and algorithm 1: the mask policy is a copy of the learner,
renewed every `target_update_iterations`; tokens outside its top p are never sampled. Rollout workers
and learner both use the *renormalised* masked distribution.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from contracts.rollout import MaskRule
from learner.algorithms.actor_critic import ActorCriticAlgorithm
from learner.algorithms.base import LossInputs, LossOutput, Traits
from learner.functional.ratios import clipped_policy

RL4LMS_MIN_TOKENS_TO_KEEP = 100


class NLPO(ActorCriticAlgorithm):
    # It mixes no data: its mask excludes tokens that data may have.
    traits: ClassVar[Traits] = Traits(learns_from="rollouts", online=True, critic=True, masks=True)

    # PPO's
    learning_rate: float = Field(default=3e-4, gt=0)
    num_epochs: int = Field(default=10, ge=1)
    minibatch_size: int | None = Field(default=64, ge=1)  # rollouts; None: the whole batch
    clip_range: float = Field(default=0.2, gt=0)
    dual_clip: float | None = Field(default=None, gt=1)  # bounds the loss of bad tokens, see ratios.py
    target_kl: float | None = Field(default=None, gt=0)  # stop the epochs when the drift exceeds 1.5 × this

    top_p: float | None = Field(default=0.9, gt=0, le=1)  # of the mask policy; None where top_k is given
    top_k: int | None = Field(default=None, ge=1)
    target_update_iterations: int = Field(default=20, ge=1)
    min_tokens_to_keep: int = Field(default=1, ge=1)
    # rl4lms: ratios of the whole softmax, a mask never renewed; 100 tokens, and special ones, always kept
    compatibility: Literal["none", "rl4lms"] = "none"

    @model_validator(mode="before")
    @classmethod
    def _rl4lms_keeps_a_hundred(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("compatibility") == "rl4lms":
            return {"min_tokens_to_keep": RL4LMS_MIN_TOKENS_TO_KEEP, **given}
        return given

    @model_validator(mode="after")
    def _one_rule(self) -> NLPO:
        if (self.top_p is None) == (self.top_k is None):
            raise ValueError(
                f"got top_p={self.top_p} and top_k={self.top_k}; the mask needs exactly one of them, "
                "the other null"
            )
        return self

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Return PPO's loss, with ratios of the masked distribution."""
        surrogate_N, drift = clipped_policy(
            inputs.logprobs_N,
            inputs.old_logprobs_N,
            inputs.advantages_N,
            num_tokens=inputs.num_tokens,
            clip_range=self.clip_range,
            dual_clip=self.dual_clip,
        )
        return self.with_critic(inputs, surrogate_N, drift)

    def mask_rule(self) -> MaskRule:
        return MaskRule(
            self.top_p,
            self.top_k,
            self.min_tokens_to_keep,
            keep_special=self.compatibility == "rl4lms",
        )

    def syncs_mask(self, version: int) -> bool:
        return self.compatibility == "none" and version % self.target_update_iterations == 0

    def renormalizes(self) -> bool:
        return self.compatibility == "none"
