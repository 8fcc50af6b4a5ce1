"""Natural language policy optimisation: PPO over the tokens that a mask policy finds likely.

Ramamurthy et al. 2023 (arXiv 2210.01241), §4 and algorithm 1: the mask policy is a copy of the learner,
renewed every `target_update_iterations`; tokens outside its top p are never sampled. Both rollout workers and
learner use the *renormalised* masked distribution.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from contracts.rollout import MaskRule
from learner.algorithms.base import Traits
from learner.algorithms.ppo import PPO

RL4LMS_MIN_TOKENS_TO_KEEP = 100


class NLPO(PPO):
    """PPO's loss, with ratios of the masked distribution."""

    # It mixes no data, because its mask excludes tokens that data may have.
    traits: ClassVar[Traits] = Traits(learns_from="rollouts", online=True, critic=True, masks=True)

    top_p: float | None = Field(default=0.9, gt=0, le=1)  # mass that the mask keeps; None: top_k is set
    top_k: int | None = Field(default=None, ge=1)
    target_update_iterations: int = Field(default=20, ge=1)
    min_tokens_to_keep: int = Field(default=1, ge=1)
    # rl4lms: ratios of the whole softmax, a mask never renewed; 100 tokens and special tokens always kept
    compatibility: Literal["none", "rl4lms"] = "none"

    @model_validator(mode="before")
    @classmethod
    def _rl4lms_keeps_a_hundred(cls, options: Any) -> Any:
        if isinstance(options, dict) and options.get("compatibility") == "rl4lms":
            return {"min_tokens_to_keep": RL4LMS_MIN_TOKENS_TO_KEEP, **options}
        return options

    @model_validator(mode="after")
    def _one_rule(self) -> NLPO:
        if (self.top_p is None) == (self.top_k is None):
            raise ValueError(
                f"got top_p={self.top_p} and top_k={self.top_k}; the mask needs exactly one of them, "
                "the other null"
            )
        return self

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
