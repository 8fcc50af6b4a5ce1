"""Return-conditioned imitation: imitate all rollouts, good and bad, each after the return that it earned.

This is the decision transformer (Chen et al. 2021, arXiv 2106.01345) in words, as in trl-textworld: every
context begins with the return to come. Rollouts are played with a high return in front. Training puts the
true return there, so the probabilities with which tokens were drawn mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from contracts.rollout import Rollout, Turn
from learner.algorithms.base import LossOver, Traits
from learner.algorithms.imitation import Imitation


class ReturnConditioned(Imitation):
    # It mixes no data, because data have no return in front.
    traits: ClassVar[Traits] = Traits(learns_from="rollouts", imitates=True, target_return=True)

    # text: the environment's words and the return in front count, too, as in trl-textworld
    loss_on: LossOver = "response"

    @property
    def loss_over(self) -> LossOver:
        return self.loss_on

    def select(
        self, rollouts: Sequence[Rollout], elite: Sequence[Rollout]
    ) -> tuple[list[Rollout], list[Rollout]]:
        """Return all rollouts, turned into whole texts if the loss covers whole texts."""
        return [whole_text(rollout) if self.loss_on == "text" else rollout for rollout in rollouts], []


def whole_text(rollout: Rollout) -> Rollout:
    """Make each sequence one turn; count all its tokens except the first as generated.

    Example: the answer to (12, 14) is (15, 2), to (9,) it is (3,): one turn, (14, 15, 2, 9, 3) after (12,).
    """
    turns = []
    for segment in rollout.segments:
        first, *rest = (token for turn in segment for token in (*turn.observation, *turn.tokens))
        text, reward = "".join(turn.text for turn in segment), sum(turn.reward or 0.0 for turn in segment)
        unknown = (0.0,) * len(rest)
        turns.append(Turn((first,), tuple(rest), text, unknown, (0,) * len(rest), reward, fresh=True))
    return replace(rollout, turns=tuple(turns), truncated_context=())
