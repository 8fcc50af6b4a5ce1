"""Turn rollouts into samples for reward servers, and put the scores back.

reward_at=end     one sample a rollout: the prompt, and all of the model's texts
reward_at=answer  one sample a rollout: the prompt, and the model's last answer
reward_at=turn    one sample a turn: the dialogue so far, and this answer
no rewards        no samples, because only the environment rewards the rollout

A score goes to the end of the text, or to places of the reward (`services/data/tokens/earned_places.py`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Literal

from contracts.rollout import Rollout, Turn
from contracts.scores import Sample, Score, Term
from services.data.tokens.earned_places import Places, TokenRewards, add_earned, at_end, of_grades

WHOLE = ("end", "answer")  # a rollout has one sample
ENVIRONMENT = "environment"  # label of the environment's part of the reward


@dataclass(frozen=True, slots=True)
class Judging:
    """Rules for grading the rollouts of a run.

    Example: a text game that rewards by itself, without other rewards:
    `Judging(at="never", environment="textworld", rewards_itself=True)`
    """

    at: Literal["end", "answer", "turn", "never"] = "end"
    environment: str | None = None  # name of the environment; None: one prompt, one answer
    rewards_itself: bool = False
    own_talks: bool = False  # True: each token sequence is a separate dialogue, as in a program
    splits_credit: bool = False  # True: the last turns of a role's dialogues share the whole rollout's score
    split: str = "train"  # split of the prompts
    whole_groups: bool = False  # True: a reward must see all rollouts of a prompt at once
    opened: str | None = None  # mark with which the chat template opens each answer's thought; "": no mark
    places: Places | None = None  # finds the tokens of characters; None: no reward scores spans

    def samples(self, rollout: Rollout) -> list[Sample]:
        """Return the samples to score, in the order in which `scored` takes the scores."""
        if self.at == "never":
            return []
        if self.at in WHOLE:
            return [self.whole(rollout)]
        return [self._turn(rollout, index) for index in _answered(rollout)]

    def num_samples(self, rollout: Rollout) -> int:
        """Return the number of samples that `samples` returns."""
        if self.at == "turn":
            return len(_answered(rollout))
        return 1 if self.at in WHOLE else 0

    def whole(self, rollout: Rollout) -> Sample:
        """Return the rollout as one sample for metrics, with all answers or only the last one."""
        sample, last = as_sample(rollout, self.split, self.opened), rollout.turns[-1:]
        if self.at != "answer" or not last:
            return sample
        return replace(sample, text=last[0].text, num_tokens=last[0].num_tokens, turns=())

    def scored(self, rollout: Rollout, scores: Sequence[Score]) -> Rollout:
        """Return the rollout with each total added to its turn's reward, and each part summed over turns.

        Every score must have a total. The environment's reward stays as a separate part. Each role of the
        policy earns the score of a whole rollout.
        """
        turns = list(rollout.turns)
        parts = {ENVIRONMENT: rollout.total_reward} if self.rewards_itself else {}
        by_token: TokenRewards = {}
        for index, earned in self._earned(rollout, scores):
            turns[index] = _with_more(turns[index], earned)
        for judged, score in zip(self._judged(rollout), scores, strict=True):
            add_earned(by_token, rollout, judged, score.earned, self.places)
        for index, rewards in by_token.items():
            turns[index] = _with_token_rewards(turns[index], rewards)
        num_shares = len(rollout.roles) if self.at == "turn" else 1  # as for the total of several roles
        for name in dict.fromkeys(name for score in scores for name in score.parts):
            # 0 for a score without this part
            parts[name] = fsum(score.parts.get(name, 0.0) for score in scores) / num_shares
        terms = {name: Term(value, 1.0) for name, value in parts.items() if name == ENVIRONMENT}
        terms |= _summed(scores, num_shares)
        judged_whole = self.at in WHOLE and not self.rewards_itself
        # A score for the whole rollout is final, so add no value for the rest of a cut-off text.
        context = () if judged_whole else rollout.truncated_context
        return replace(
            rollout,
            turns=tuple(turns),
            reward_parts=parts,
            reward_terms=terms,
            truncated_context=context,
            turn_parts=tuple(score.parts for score in scores) if self.at == "turn" else (),
            **of_grades(scores),
        )

    def _judged(self, rollout: Rollout) -> list[list[int]]:
        """Return the turns in each sample."""
        if self.at == "end":
            return [list(range(len(rollout.turns)))]
        if self.at == "answer":
            return [[len(rollout.turns) - 1]]
        return [[index] for index in _answered(rollout)] if self.at == "turn" else []

    def _turn(self, rollout: Rollout, index: int) -> Sample:
        """Return an answer as a sample, with the earlier turns of its role, or of its own sequence."""
        turn, turns = rollout.turns[index], rollout.turns[: index + 1]
        begins = max((place for place, earlier in enumerate(turns) if earlier.fresh), default=0)
        heard = tuple(
            earlier for earlier in turns[begins if self.own_talks else 0 :] if earlier.role == turn.role
        )
        before = talk_before(replace(rollout, turns=heard), len(heard) - 1)
        sample = as_sample(rollout, self.split, self.opened)
        return replace(sample, text=turn.text, prompt=before, num_tokens=turn.num_tokens, turns=())

    def _earned(self, rollout: Rollout, scores: Sequence[Score]) -> Iterator[tuple[int, float]]:
        """Return the turns that earn scores, with their shares: all turns, or each role's last turns."""
        answered = _answered(rollout)
        if self.at not in WHOLE:
            scored = zip(answered if self.at == "turn" else (), scores, strict=True)
            return ((index, at_end(score)) for index, score in scored)
        (score,) = scores
        answered, talk = answered or [len(rollout.turns) - 1], 0
        last: dict[tuple[str, int], int] = {}  # by role, and by dialogue if these share
        for index, turn in enumerate(rollout.turns):
            talk += turn.fresh and self.splits_credit
            if index in answered:
                last[turn.role, talk] = index
        shares = Counter(role for role, _ in last)
        return ((index, at_end(score) / shares[role]) for (role, _), index in last.items())


AT_THE_END = Judging()  # one prompt, one answer


def as_sample(rollout: Rollout, split: str, opened: str | None = None) -> Sample:
    """Return the whole rollout as one sample. If there are several answers, each takes a line.

    Args:
        opened: mark with which the chat template opens each answer's thought; None: unknown.
    """
    prompt = rollout.prompt
    # All answers to one prompt share the group. Training and held-out prompts never share a group.
    group = f"{split}/{rollout.group}"
    of_prompt = prompt.text, prompt.references, prompt.meta
    answers = tuple(turn.text for turn in rollout.turns if turn.num_tokens)
    turns = answers if len(answers) > 1 else ()
    return Sample(rollout.text, *of_prompt, group, rollout.num_generated, opened, turns)


def with_score(rollout: Rollout, score: Score) -> Rollout:
    """Add the score to the reward of the last turn."""
    return AT_THE_END.scored(rollout, [score])


def talk_before(rollout: Rollout, index: int) -> str:
    """Return the dialogue before the model's answer `index`, from the prompt's text on, one text a line.

    Example: before answer 1 there are the three lines "Hello!", "Hi." and "How are you?".
    """
    texts = [rollout.turns[0].observation_text or rollout.prompt.text]
    for before, turn in zip(rollout.turns[:index], rollout.turns[1 : index + 1], strict=True):
        texts += [before.text, turn.observation_text]
    return "\n".join(filter(None, texts))


def _answered(rollout: Rollout) -> list[int]:
    """Return the turns in which the model wrote something."""
    return [index for index, turn in enumerate(rollout.turns) if turn.num_tokens]


def _summed(scores: Sequence[Score], num_shares: int) -> dict[str, Term]:
    """Sum each part's values over the scores; a part has the same weight in all scores."""
    terms = [term for score in scores for term in score.terms.items()]
    values: dict[str, list[float]] = {}
    for name, term in terms:
        values.setdefault(name, []).append(term.value)
    weights = {name: term.weight for name, term in terms}
    return {name: Term(fsum(of_part) / num_shares, weights[name]) for name, of_part in values.items()}


def _with_more(turn: Turn, reward: float) -> Turn:
    return turn.with_reward((turn.reward or 0.0) + reward)


def _with_token_rewards(turn: Turn, rewards: Sequence[float]) -> Turn:
    """Return the turn with rewards of its tokens. Its last token also earns the turn's earlier reward."""
    *before, last = rewards
    rewards = (*before, last + (turn.reward or 0.0))
    return turn.with_reward(fsum(rewards), rewards)
