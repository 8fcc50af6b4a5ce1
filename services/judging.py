"""What reward servers are shown of a rollout, and where their scores go.

reward_at=end    one sample a rollout: the prompt, and all that the model wrote
reward_at=turn   one sample a turn: the talk so far, and this answer
no rewards       none: the environment's own rewards are all there are
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Literal

from contracts.rollout import Rollout, Turn
from contracts.scores import Sample, Score

ENVIRONMENT = "environment"  # the part of the reward that an environment gave


@dataclass(frozen=True, slots=True)
class Judging:
    """How the rollouts of a run are judged.

    Example: a text game that rewards by itself, and nobody else does:
    `Judging(at="never", environment="textworld", rewards_itself=True)`
    """

    at: Literal["end", "turn", "never"] = "end"
    environment: str | None = None  # its name; None: one prompt, one answer
    rewards_itself: bool = False
    split: str = "train"  # whose prompts these are

    def samples(self, rollout: Rollout) -> list[Sample]:
        """What is to be scored, in the order in which `scored` takes the scores."""
        if self.at == "never":
            return []
        if self.at == "end":
            return [as_sample(rollout, self.split)]
        return [_turn_sample(rollout, index, self.split) for index in _answered(rollout)]

    def scored(self, rollout: Rollout, scores: Sequence[Score]) -> Rollout:
        """The rollout with each total added to its turn's reward, and each part summed over the turns.

        Every score has a total. What the environment gave stays in, and is a part of its own.
        """
        last = _answered(rollout)[-1:] or [len(rollout.turns) - 1]
        places = {"never": [], "end": last, "turn": _answered(rollout)}[self.at]
        turns = list(rollout.turns)
        parts = {ENVIRONMENT: rollout.total_reward} if self.rewards_itself else {}
        for index, score in zip(places, scores, strict=True):
            turns[index] = _with_more(turns[index], score.total or 0.0)
        for name in scores[0].parts if scores else ():
            parts[name] = fsum(score.parts[name] for score in scores)
        judged_whole = self.at == "end" and not self.rewards_itself
        # What was judged as a whole is worth that and no more: nothing that would have come is added to it.
        pending = () if judged_whole else rollout.pending
        return replace(rollout, turns=tuple(turns), reward_parts=parts, pending=pending)


AT_THE_END = Judging()  # one prompt, one answer


def as_sample(rollout: Rollout, split: str) -> Sample:
    """The whole of it: of several turns, the model's answers, a line each."""
    prompt = rollout.prompt
    return Sample(rollout.text, prompt.text, prompt.references, prompt.meta, _group_of(rollout, split))


def with_score(rollout: Rollout, score: Score) -> Rollout:
    """The total stands at the end of the last turn, where the text is finished."""
    return AT_THE_END.scored(rollout, [score])


def talk_before(rollout: Rollout, index: int) -> str:
    """What was said before the model's answer `index`, a line each; it begins with the prompt's text.

    Example: after "Hello!", "Hi." and "How are you?" the third answer is judged against those three lines.
    """
    said = [rollout.turns[0].observation_text or rollout.prompt.text]
    for before, turn in zip(rollout.turns[:index], rollout.turns[1 : index + 1], strict=True):
        said += [before.text, turn.observation_text]
    return "\n".join(filter(None, said))


def _turn_sample(rollout: Rollout, index: int, split: str) -> Sample:
    text, before = rollout.turns[index].text, talk_before(rollout, index)
    return replace(as_sample(rollout, split), text=text, prompt=before)


def _group_of(rollout: Rollout, split: str) -> str:
    """All answers to one prompt, of each turn, share it; training and held-out prompts never do."""
    return f"{split}/{rollout.group}"


def _answered(rollout: Rollout) -> list[int]:
    """The turns in which the model said something at all."""
    return [index for index, turn in enumerate(rollout.turns) if turn.tokens]


def _with_more(turn: Turn, reward: float) -> Turn:
    return replace(turn, reward=(turn.reward or 0.0) + reward)
