"""Return-conditioned imitation: all rollouts, good and bad, each behind the return that it came to.

The decision transformer's form (Chen et al. 2021, arXiv 2106.01345) in words, as trl-textworld has it: every
context begins with the return to come. Played with a high return in front, trained with the true one: whoever
plays the rollouts rewrites their contexts, so the probabilities that they were drawn with mean nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from contracts.rollout import Rollout, Turn
from learner.algorithms.base import LearnsFrom, MixesData
from learner.algorithms.supervised import Supervised


class ReturnConditioned(Supervised):
    learns_from: ClassVar[LearnsFrom] = "rollouts"
    mixes_data: ClassVar[MixesData | None] = None  # data have no return in front of them
    needs_target_return: ClassVar[bool] = True

    # text: what the world said counts, too, and the return in front of it, as trl-textworld has it
    loss_on: Literal["response", "text"] = "response"

    def select(
        self, rollouts: Sequence[Rollout], elite: Sequence[Rollout]
    ) -> tuple[list[Rollout], list[Rollout]]:
        """All of them, as texts without prompts where the loss is on those."""
        return [whole_text(each) if self.loss_on == "text" else each for each in rollouts], []


def whole_text(rollout: Rollout) -> Rollout:
    """Each sequence as one turn, of which all but the first token count as the model's.

    Example: to (12, 14) the answer is (15, 2), to (9,) it is (3,): one turn, (14, 15, 2, 9, 3) behind (12,).
    """
    turns = []
    for segment in rollout.segments:
        first, *rest = (token for turn in segment for token in (*turn.observation, *turn.tokens))
        text, reward = "".join(turn.text for turn in segment), sum(turn.reward or 0.0 for turn in segment)
        unknown = (0.0,) * len(rest)
        turns.append(Turn((first,), tuple(rest), text, unknown, (0,) * len(rest), reward, fresh=True))
    return replace(rollout, turns=tuple(turns), pending=())
