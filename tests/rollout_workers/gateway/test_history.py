"""Sequences and masks of an episode's calls, worked out by hand."""

import pytest

from contracts.errors import EpisodeError
from contracts.rollout import FinishReason, Prompt, Rollout
from rollout_workers.engines.base import Generation
from rollout_workers.gateway.history import Call, History, talk_digests
from rollout_workers.programs.reward import Reward, with_reward


def call(
    history: History, parent: Call | None, observed: tuple[int, ...], *drawn: int, role: str = ""
) -> Call:
    """A finished call: the model read `observed` after the parent's answer and drew `drawn`."""
    logprobs = tuple(-token / 100 for token in drawn)
    generation = Generation(0, drawn, "…", logprobs, (4,) * len(drawn), FinishReason.STOP)
    made = Call(parent, observed, "", generation, role)
    history.add(made)
    return made


def rollout(history: History, reward: float | Reward = 1.0, is_split: bool = False) -> Rollout:
    episode_reward = reward if isinstance(reward, Reward) else Reward(reward)
    turns = with_reward(history.turns(), episode_reward, is_split)
    return Rollout(1, 1, Prompt("p", ""), turns, FinishReason.STOP)


def test_calls_that_go_on_make_one_sequence() -> None:
    history = History()
    first = call(history, None, (1, 2), 11, 12)
    second = call(history, first, (3,), 13)
    call(history, second, (4, 5), 14)

    made = rollout(history)

    assert made.tokens == (1, 2, 11, 12, 3, 13, 4, 5, 14)
    assert made.loss_mask == (0, 0, 1, 1, 0, 1, 0, 0, 1)
    assert made.behavior_logprobs == (0, 0, -0.11, -0.12, 0, -0.13, 0, 0, -0.14)
    assert made.weight_versions == (-1, -1, 4, 4, -1, 4, -1, -1, 4)
    assert [len(segment) for segment in made.segments] == [3]
    assert [turn.reward for turn in made.turns] == [0, 0, 1]


def test_a_fork_begins_a_sequence_that_reads_what_came_before_and_trains_on_its_own_answer_alone() -> None:
    """Both later calls go on after 11: the first to end continues; the other reads 1 2 11 and answers 13."""
    history = History()
    first = call(history, None, (1, 2), 11)
    call(history, first, (3,), 12)
    call(history, first, (4,), 13)

    made = rollout(history)

    assert [[turn.observation + turn.tokens for turn in segment] for segment in made.segments] == [
        [(1, 2, 11), (3, 12)],
        [(1, 2, 11, 4, 13)],
    ]
    assert made.loss_mask == (*(0, 0, 1, 0, 1), *(0, 0, 0, 0, 1))
    assert made.context(2) == (1, 2, 11, 4)


def test_two_agents_in_turn_make_two_sequences_and_the_last_answer_comes_last() -> None:
    """The main agent (10s) calls, its helper (20s) calls twice meanwhile, and the main agent ends."""
    history = History()
    main = call(history, None, (1,), 11)
    helper = call(history, None, (2,), 21)
    call(history, helper, (3,), 22)
    call(history, main, (4,), 12)

    made = rollout(history)

    assert made.tokens == (*(2, 21, 3, 22), *(1, 11, 4, 12))
    assert made.loss_mask == (*(0, 1, 0, 1), *(0, 1, 0, 1))
    assert [turn.fresh for turn in made.turns] == [True, False, True, False]


def test_credit_goes_to_the_last_answer_or_in_equal_parts_to_each_sequence() -> None:
    history = History()
    main = call(history, None, (1,), 11)
    call(history, None, (2,), 21)
    call(history, main, (4,), 12)

    assert [turn.reward for turn in rollout(history, 3.0).turns] == [0, 0, 3.0]
    assert [turn.reward for turn in rollout(history, 3.0, is_split=True).turns] == [1.5, 0, 1.5]
    assert rollout(history, 3.0, is_split=True).total_reward == 3.0


def debate() -> History:
    """Pro speaks twice, in two sequences; con speaks in between, and the judge of no role comes last."""
    history = History()
    call(history, None, (1,), 11, role="pro")
    call(history, None, (2,), 21, role="con")
    call(history, None, (3,), 12, role="pro")
    call(history, None, (4,), 31)
    return history


def test_roles_have_rewards_of_their_own() -> None:
    reward = Reward(by_model={"policy/pro": 1.0, "policy/con": -1.0, "policy": 0.5, "policy/unheard": 3.0})
    made = rollout(debate(), reward)
    assert [(turn.role, turn.reward) for turn in made.turns] == [
        *[("pro", 0), ("con", -1), ("pro", 1), ("", 0.5)]
    ]
    assert [turn.reward for turn in rollout(debate(), reward, is_split=True).turns] == [0.5, -1, 0.5, 0.5]


def test_one_reward_is_earned_by_every_role() -> None:
    assert [turn.reward for turn in rollout(debate(), 2.0).turns] == [0, 2, 2, 2]
    assert rollout(debate(), 2.0).total_reward == 2


def test_a_role_that_spoke_needs_a_reward_where_others_have_one() -> None:
    with pytest.raises(EpisodeError, match="policy/con has answered, too"):
        rollout(debate(), Reward(by_model={"policy/pro": 1.0, "con": -1.0}))


def test_a_role_does_not_go_on_from_what_another_one_said() -> None:
    history, talk = History(), [{"role": "user", "content": "Hi"}]
    pro = call(history, None, (1,), 11, role="pro")
    answered = [*talk, {"role": "assistant", "content": "Ho"}, {"role": "user", "content": "So?"}]
    history.know_talk(talk_digests(answered[:2], role="pro")[-1], pro)
    history.know_text("Hi Ho", pro)
    assert history.find_talk(talk_digests(answered, role="pro"), answered) == (pro, 2)
    assert history.find_talk(talk_digests(answered, role="con"), answered) == (None, 0)
    assert history.find_text("Hi Ho hi", "pro") == (pro, " hi")
    assert history.find_text("Hi Ho hi", "con") == (None, "Hi Ho hi")


def test_a_talk_is_known_by_what_was_said_and_not_by_what_clients_add() -> None:
    question = {"role": "user", "content": "3 + 4?"}
    answer = {"role": "assistant", "content": " 7"}
    added = {"role": "assistant", "content": "7", "refusal": None, "annotations": [], "id": "x"}
    then = {"role": "user", "content": "And then?"}
    history = History()
    first = call(history, None, (1,), 11)
    history.know_talk(talk_digests([question, answer])[-1], first)

    def found(*messages: dict[str, object]) -> tuple[Call | None, int]:
        return history.find_talk(talk_digests(messages), messages)

    assert found(question, added, then) == (first, 2)
    assert found(question, {**added, "content": "8"}, then) == (None, 0)  # an edited answer
    assert found({**question, "content": "3 + 5?"}, added, then) == (None, 0)  # an edited question
    assert found(question, added) == (None, 0)  # nothing new
    assert found(question, added, then, {**answer, "content": "own"}, then) == (
        None,
        0,
    )  # an answer not drawn
    tools = [{"type": "function", "function": {"name": "add"}}]
    assert history.find_talk(talk_digests([question, added, then], tools), [question, added, then]) == (
        None,
        0,
    )


def test_a_prompt_goes_on_from_the_longest_text_that_begins_it() -> None:
    history = History()
    first = call(history, None, (1,), 11)
    second = call(history, first, (2,), 12)
    history.know_text("3 + 4 = 7", first)
    history.know_text("3 + 4 = 7; 7 + 1 = 8", second)

    assert history.find_text("3 + 4 = 7; 7 + 1 = 8; and") == (second, "; and")
    assert history.find_text("3 + 4 = 7.") == (first, ".")
    assert history.find_text("3 + 5") == (None, "3 + 5")
