"""Rejection sampling: imitate only the best of what the policy wrote.

As trl-textworld does it: rollouts, or single (state, action) pairs by their return-to-go, are ranked; the top
share or the top n are kept; the loss is their cross-entropy, with a KL to the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from contracts.errors import LearnerError
from contracts.rollout import Rollout
from learner.algorithms.base import KLSettings, Traits
from learner.algorithms.imitation import Imitation


class RejectionSampling(Imitation):
    traits: ClassVar[Traits] = Traits(
        learns_from="rollouts", online=True, mixes_data="plainly", imitates=True
    )

    unit: Literal["rollout", "turn"] = "rollout"  # turn: (state, action) pairs, by return-to-go
    top_share: float | None = Field(default=0.5, gt=0, le=1)
    top_n: int | None = Field(default=None, ge=1)  # instead of top_share
    gamma: float = Field(default=1.0, ge=0, le=1)  # across turns, in a turn's return-to-go
    elite_size: int = Field(default=0, ge=0)  # the best of all iterations so far, trained on again; 0: none
    kl: KLSettings = KLSettings(placement="loss", coefficient=0.0)

    @model_validator(mode="after")
    def _one_measure(self) -> RejectionSampling:
        if (self.top_share is None) == (self.top_n is None):
            raise ValueError(
                f"got top_share={self.top_share} and top_n={self.top_n}; exactly one of them is needed, "
                "the other null"
            )
        if self.kl.placement == "reward":
            raise ValueError("kl.placement=reward changes no cross-entropy; expected kl.placement=loss")
        return self

    @property
    def divides_rollouts(self) -> bool:
        return self.unit == "turn"

    def select(
        self, rollouts: Sequence[Rollout], elite: Sequence[Rollout]
    ) -> tuple[list[Rollout], list[Rollout]]:
        """Select the best of this iteration and of the elite, the best rollouts of earlier iterations.

        Raises:
            LearnerError: a reward is infinite or NaN, so that it has no rank.
        """
        units = list(rollouts) if self.unit == "rollout" else list(self._turns(rollouts))
        num_kept = self.top_n or max(1, round(len(units) * (self.top_share or 0)))
        best = _best(units, num_kept)
        if not self.elite_size:
            return best, []
        # The newer of equal ones lasts: with rewards of 0 or 1, the first ones would stay for ever.
        lasting = _best([*best, *elite], self.elite_size)
        return lasting, lasting

    def _turns(self, rollouts: Iterable[Rollout]) -> Iterable[Rollout]:
        """Yield each turn as a rollout: its context is the prompt, its return-to-go the reward."""
        for rollout in rollouts:
            to_go, turns = 0.0, []
            for index in reversed(range(len(rollout.turns))):
                turn = rollout.turns[index]
                to_go = (turn.reward or 0.0) + self.gamma * to_go
                alone = replace(turn, observation=rollout.context(index), fresh=True)
                turns.append(alone.with_reward(to_go))
            yield from (
                replace(rollout, turns=(turn,), truncated_context=())
                for turn in reversed(turns)
                if turn.tokens
            )


def _best(rollouts: Sequence[Rollout], count: int) -> list[Rollout]:
    """Return the `count` rollouts with the highest total rewards, the first of equal ones."""
    for rollout in rollouts:
        if not math.isfinite(rollout.total_reward):
            raise LearnerError(
                f"the rollout of lease {rollout.lease_id} (prompt {rollout.prompt.id}) has the reward "
                f"{rollout.total_reward}, which can't be ranked; finite rewards are expected"
            )
    return sorted(rollouts, key=lambda rollout: -rollout.total_reward)[:count]
