"""Parts of a talk that graders see, and the places of their scores."""

import io
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

import pytest
from rich.console import Console as Terminal

from contracts.rollout import FinishReason, Prompt, Rollout, Sampling, Turn
from contracts.scores import MetricValue, Sample, Score
from reward_servers.settings import parts
from reward_servers.shaping import shares
from services.config.reward_view import Judging, talk_before, with_score
from services.data.tokens.prompt_tokens import PromptTokens
from services.runs.tracking.console import Console
from services.training.loop.collecting import Collector, FailureBudget
from services.training.loop.evaluations.evaluation import evaluate
from services.training.sources.leasing import LeaseSource, evaluation_leases
from tests.fakes import FakeRewards, FakeWorkers, WordTokens, prompts


def turn(text: str, observed: str = "", reward: float | None = None, num_tokens: int = 2) -> Turn:
    none = (0.0,) * num_tokens
    return Turn((5,), (7,) * num_tokens, text, none, (0,) * num_tokens, reward, observation_text=observed)


def talk(*turns: Turn) -> Rollout:
    prompt = Prompt("talks/0", "Hello!", references=("Hi.",), meta={"intents": 1})
    return Rollout(0, 0, prompt, turns, FinishReason.STOP)


TALK = talk(turn("Hi.", "Hello!"), turn("Fine.", "How are you?"), turn("Bye.", "Good."))


def test_at_the_end_all_answers_are_judged_as_one_text() -> None:
    expected = Sample("Hi.\nFine.\nBye.", "Hello!", ("Hi.",), {"intents": 1}, "train/0", num_tokens=6)
    expected = replace(expected, turns=("Hi.", "Fine.", "Bye."))
    assert Judging().samples(TALK) == [expected]


def test_samples_carry_the_mark_with_which_the_template_opened_their_thought() -> None:
    for at in ("end", "answer", "turn"):
        samples = Judging(at=at, opened="<think>").samples(TALK)
        assert {sample.opened for sample in samples} == {"<think>"}
        assert all(sample.response.startswith("<think>") for sample in samples)


def test_the_last_answer_can_be_judged_alone() -> None:
    judging = Judging(at="answer")
    (sample,) = judging.samples(TALK)
    assert (sample.text, sample.num_tokens) == (TALK.turns[-1].text, TALK.turns[-1].num_tokens)
    assert sample == judging.whole(TALK) and judging.num_samples(TALK) == 1
    assert (sample.prompt, sample.group) == (Judging().whole(TALK).prompt, Judging().whole(TALK).group)
    scored = judging.scored(TALK, [Score(2.0)])
    assert [turn.reward for turn in scored.turns[:-1]] == [turn.reward for turn in TALK.turns[:-1]]
    assert scored.turns[-1].reward == 2.0 + (TALK.turns[-1].reward or 0.0)
    assert scored.truncated_context == ()


def test_at_each_turn_an_answer_is_judged_after_what_was_said_before_it() -> None:
    samples = Judging(at="turn").samples(TALK)

    assert [(sample.prompt, sample.text) for sample in samples] == [
        ("Hello!", "Hi."),
        ("Hello!\nHi.\nHow are you?", "Fine."),
        ("Hello!\nHi.\nHow are you?\nFine.\nGood.", "Bye."),
    ]
    assert all(sample.references == ("Hi.",) and sample.meta == {"intents": 1} for sample in samples)
    assert {sample.group for sample in samples} == {"train/0"}


def test_each_role_earns_the_score_of_a_whole_talk_and_that_of_its_own_turns() -> None:
    lines = [("pro", "Yes."), ("con", "No."), ("pro", "Yes!")]
    debate = talk(*[replace(turn(text), role=role) for role, text in lines])
    for at in ("end", "answer"):
        scored = Judging(at=at).scored(debate, [Score(2.0, {"wit": 2.0})])
        assert [turn.reward for turn in scored.turns] == [None, 2.0, 2.0]
        assert scored.total_reward == scored.reward_parts["wit"] == 2.0
    scored = Judging(at="turn").scored(debate, [Score(score, {"wit": score}) for score in (1.0, 4.0, 2.0)])
    assert [turn.reward for turn in scored.turns] == [1.0, 4.0, 2.0]
    assert scored.total_reward == scored.reward_parts["wit"] == 3.5  # (1 + 2 + 4) / 2


def test_a_share_counts_what_each_answer_earned() -> None:
    """Length is clipped at 1 for each answer: 3 · 1 of it against 3 · 1 of wit."""
    both = parts([{"name": "length", "clip": [0, 1]}, {"name": "rouge", "label": "wit"}])
    scores = [Score(2.0, {"length": 5.0, "wit": 1.0})] * 3
    scored = Judging(at="turn").scored(TALK, scores)
    assert scored.reward_parts == {"length": 15.0, "wit": 3.0}
    assert shares(both, scored.judged_parts) == {"reward/length/share": 0.5, "reward/wit/share": 0.5}
    whole = Judging().scored(TALK, scores[:1])
    assert whole.judged_parts == (whole.reward_parts,)


class Seen(FakeRewards):
    """Keeps what graders are shown."""

    def __init__(self) -> None:
        super().__init__()
        self.scored: list[Sample] = []
        self.measured: list[Sample] = []

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        self.scored += samples
        return super().submit(samples)

    def compute_metrics(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        self.measured += samples
        return super().compute_metrics(samples)


def test_each_prompt_of_an_iteration_has_a_group_of_its_own_and_keeps_it_in_a_resumed_run() -> None:
    """Two prompts, of which an iteration draws each twice, are trained on beside both held-out splits."""

    def source() -> LeaseSource:
        tokens = PromptTokens(WordTokens())
        return LeaseSource(prompts(2), tokens, Sampling(max_tokens=4), group_size=3, seed=0)

    seen, console = Seen(), Console(Terminal(file=io.StringIO()))
    collector = Collector(FakeWorkers([]), seen, FailureBudget(9, 9), console, lambda: None, 1.0)
    first, second = source(), source()
    leases = first.lease(4)
    collector(leases)
    trained = {sample.group for sample in seen.scored}
    assert trained == {f"train/{number}" for number in range(4)}
    assert Counter(sample.group for sample in seen.scored) == dict.fromkeys(trained, 3)

    held_out = evaluation_leases(
        prompts(2), PromptTokens(WordTokens()), Sampling(max_tokens=4), samples=2, seed=0
    )
    for split in ("validation", "test"):
        evaluate(split, held_out, collector)
    groups = Counter(sample.group for sample in seen.scored[12:])
    assert groups == {f"{split}/{number}": 2 for split in ("validation", "test") for number in range(2)}
    assert Counter(sample.group for sample in seen.measured) == groups

    first.finish(4, [])
    second.restore(first.state())
    seen.scored.clear()
    collector(second.lease(2))
    assert {sample.group for sample in seen.scored} == {"train/4", "train/5"}


def test_a_talk_begins_with_its_prompt_where_the_world_says_nothing_of_its_own() -> None:
    assert talk_before(talk(turn("Hi."), turn("Bye.", "Fine?")), 1) == "Hello!\nHi.\nFine?"


def test_scores_at_each_turn_are_added_where_they_belong() -> None:
    """The environment gave 1 and 2; the graders 0.5 and 0.25, of which quality 5 and 2.5."""
    judging = Judging(at="turn", environment="game", rewards_itself=True)
    rollout = talk(turn("a", reward=1.0), turn("b", reward=2.0))
    scores = [Score(0.5, {"quality": 5.0}), Score(0.25, {"quality": 2.5})]

    scored = judging.scored(rollout, scores)

    assert [turn.reward for turn in scored.turns] == [1.5, 2.25]
    assert scored.reward_parts == {"environment": 3.0, "quality": 7.5}
    assert scored.total_reward == 3.75


def test_a_score_at_the_end_leaves_earlier_rewards_alone() -> None:
    judging = Judging(environment="game", rewards_itself=True)
    rollout = talk(turn("a", reward=1.0), turn("b", reward=2.0))
    scored = judging.scored(rollout, [Score(0.5, {"quality": 5.0})])

    assert [turn.reward for turn in scored.turns] == [1.0, 2.5]
    assert scored.reward_parts == {"environment": 3.0, "quality": 5.0}


def test_where_nobody_judges_the_environments_rewards_are_all() -> None:
    judging = Judging(at="never", environment="game", rewards_itself=True)
    rollout = talk(turn("a", reward=1.0), turn("b", reward=2.0))

    assert judging.samples(rollout) == []
    scored = judging.scored(rollout, [])
    assert scored.turns == rollout.turns
    assert scored.reward_parts == {"environment": 3.0}


def test_a_turn_without_tokens_is_nobodys_answer() -> None:
    rollout = talk(turn("a"), turn("", "said by others", num_tokens=0))

    assert [sample.text for sample in Judging(at="turn").samples(rollout)] == ["a"]
    assert [turn.reward for turn in with_score(rollout, Score(0.5)).turns] == [0.5, None]


def test_a_role_is_judged_by_what_it_heard_itself() -> None:
    lines = (("p1", "Begin.", "pro"), ("p2", "Go on.", "pro"), ("c1", "Answer p1.", "con"))
    turns = (replace(turn(text, observed), role=role) for text, observed, role in lines)
    samples = Judging(at="turn").samples(talk(*turns))
    assert [(sample.text, sample.prompt) for sample in samples] == [
        ("p1", "Begin."),
        ("p2", "Begin.\np1\nGo on."),
        ("c1", "Answer p1."),
    ]


def test_each_talk_of_a_program_is_judged_without_the_others() -> None:
    lines = (("m1", "Plan.", True), ("m2", "Go on.", False), ("h1", "Search.", True), ("h2", "More.", False))
    episode = talk(*(replace(turn(text, heard), fresh=begins) for text, heard, begins in lines))
    prompts = {
        own_talks: [sample.prompt for sample in Judging(at="turn", own_talks=own_talks).samples(episode)]
        for own_talks in (True, False)
    }
    assert prompts[True] == ["Plan.", "Plan.\nm1\nGo on.", "Search.", "Search.\nh1\nMore."]
    # A model that forgot old turns still plays one game.
    assert prompts[False][2] == "Plan.\nm1\nGo on.\nm2\nSearch."


def test_a_programs_talks_share_a_score_for_the_whole_if_they_split_credit() -> None:
    lines = (("a1", "", True), ("a2", "", False), ("b1", "", True), ("c1", "con", True))
    episode = talk(*(replace(turn(text), role=role, fresh=begins) for text, role, begins in lines))
    earned = {
        split: [judged.reward for judged in Judging(splits_credit=split).scored(episode, [Score(3.0)]).turns]
        for split in (False, True)
    }
    assert earned[False] == [None, None, 3.0, 3.0]
    assert earned[True] == [None, 1.5, 1.5, 3.0]


def test_as_many_scores_as_turns_are_expected() -> None:
    with pytest.raises(ValueError, match="zip"):
        Judging(at="turn").scored(TALK, [Score(1.0)])
