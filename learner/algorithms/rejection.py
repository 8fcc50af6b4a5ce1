"""Rejection sampling: imitate only the best texts of the policy.

As in trl-textworld, rank rollouts, or single (state, action) pairs by their return-to-go. Keep the top share
or the top n. The loss is their cross-entropy, with a KL to the reference.
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
    top_n: int | None = Field(default=None, ge=1)  # how many of the best to keep, instead of top_share
    gamma: float = Field(default=1.0, ge=0, le=1)  # discount across turns, in a turn's return-to-go
    elite_size: int = Field(default=0, ge=0)  # keep and repeat the best of all iterations so far; 0: none
    kl: KLSettings = KLSettings(placement="loss", coefficient=0.0)

    @model_validator(mode="after")
    def _one_measure(self) -> RejectionSampling:
        if (self.top_share is None) == (self.top_n is None):
            raise ValueError(
                f"got top_share={self.top_share} and top_n={self.top_n}; set exactly one of the two, and "
                "leave the other null"
            )
        if self.kl.placement == "reward":
            raise ValueError(
                "kl.placement=reward: rejection minimises a cross-entropy, so a KL in the reward has no "
                "effect on its loss; expected kl.placement=loss"
            )
        return self

    @property
    def divides_rollouts(self) -> bool:
        return self.unit == "turn"

    def select(
        self, rollouts: Sequence[Rollout], elite: Sequence[Rollout]
    ) -> tuple[list[Rollout], list[Rollout]]:
        """Select the best of this iteration and of the elite, the best rollouts of earlier iterations.

        Raises:
            LearnerError: a reward is infinite or NaN, so it has no rank.
        """
        units = list(rollouts) if self.unit == "rollout" else list(self._turns(rollouts))
        num_kept = self.top_n or max(1, round(len(units) * (self.top_share or 0)))
        best = _best(units, num_kept)
        if not self.elite_size:
            return best, []
        # Keep the newer of equal rollouts. Otherwise, with rewards of 0 or 1, the first would stay for ever.
        lasting = _best([*best, *elite], self.elite_size)
        return lasting, lasting

    def _turns(self, rollouts: Iterable[Rollout]) -> Iterable[Rollout]:
        """Yield each turn as a rollout, with its context as prompt and its return-to-go as reward."""
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
    """Return the `count` rollouts with the highest total rewards; of equal ones, the first."""
    for rollout in rollouts:
        if not math.isfinite(rollout.total_reward):
            raise LearnerError(
                f"the rollout of lease {rollout.lease_id} (prompt {rollout.prompt.id}) has the reward "
                f"{rollout.total_reward}, which can't be ranked; finite rewards are expected"
            )
    return sorted(rollouts, key=lambda rollout: -rollout.total_reward)[:count]
