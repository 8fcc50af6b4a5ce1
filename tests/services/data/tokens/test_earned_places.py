"""Where scores by token, turn and span land in a rollout, and what it keeps of records."""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contracts.errors import RunError
from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from contracts.scores import Grade, Score
from reward_servers.combine import weighted_sum
from reward_servers.settings import Part
from services.config.reward_view import Judging
from services.data.tokens.token_places import places, token_ends
from services.models.new_tokenizer import byte_tokenizer

WORDS = {3: "3", 7: " 7", 51: " 51", 8: "8", 0: ""}


def written(tokens: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in tokens)


def turn(*tokens: int, reward: float | None = None, text: str | None = None) -> Turn:
    none = (0.0,) * len(tokens)
    spelt = written(tokens) if text is None else text
    return Turn((5,), tokens, spelt, none, (0,) * len(tokens), reward)


def rollout(*turns: Turn) -> Rollout:
    return Rollout(0, 0, Prompt("p/0", "Count!"), turns, FinishReason.STOP)


def judging(at: str = "end") -> Judging:
    return Judging(at=at, places=partial(places, written=written))  # type: ignore[arg-type]


def scored(one: Rollout, *answers: float | Grade, at: str = "end", parts: Sequence[Part] = ()) -> Rollout:
    scores = [weighted_sum(parts or [Part(name="mine")], [[(answer, None)]])[0] for answer in answers]
    return judging(at).scored(one, scores)


ALONE = rollout(turn(3, 7, 51, 0))  # "3 7 51"
TALK = rollout(turn(3, 7, 0), turn(8, 0))  # "3 7" and "8"


def test_a_list_by_token_lands_on_the_tokens_with_its_weight() -> None:
    judged = scored(ALONE, Grade((0.5, 0.0, 1.0, 0.25)), parts=[Part(name="mine", weight=2.0)])
    assert judged.turns[0].token_rewards == (1.0, 0.0, 2.0, 0.5)
    assert judged.total_reward == 3.5 and judged.reward_parts == {"mine": 1.75}


def test_a_spans_score_lands_on_the_token_that_holds_its_last_character() -> None:
    # "3", " 7" and " 51" end after the characters 1, 3 and 6
    judged = scored(ALONE, Grade(((0, 1, 1.0), (0, 2, 2.0), (0, 3, 4.0), (3, 6, 8.0), (3, 5, 16.0))))
    assert judged.turns[0].token_rewards == (1.0, 6.0, 24.0, 0.0)


def test_places_run_through_all_answers_of_a_talk() -> None:
    assert scored(TALK, Grade((1.0, 2.0, 3.0, 4.0, 5.0))).turns[1].token_rewards == (4.0, 5.0)
    by_turn = scored(TALK, Grade((1.0, 2.0), by="turn"))
    assert [answer.token_rewards for answer in by_turn.turns] == [(0.0, 0.0, 1.0), (0.0, 2.0)]
    # "3 7\n8": the line's end is after the first answer
    spans = scored(TALK, Grade(((0, 1, 1.0), (0, 4, 2.0), (4, 5, 4.0))))
    assert [answer.token_rewards for answer in spans.turns] == [(1.0, 2.0, 0.0), (4.0, 0.0)]
    assert [answer.reward for answer in spans.turns] == [3.0, 4.0]
    (sample,) = judging().samples(TALK)
    assert (sample.turns, sample.num_tokens) == (("3 7", "8"), 5)


def test_a_turn_without_tokens_takes_a_line_and_no_score() -> None:
    talk = rollout(turn(3, 0), turn(text=""), turn(8, 0))  # "3\n\n8"
    judged = scored(talk, Grade(((3, 4, 1.0), (1, 3, 2.0))))
    assert [answer.token_rewards for answer in judged.turns] == [(2.0, 0.0), (), (1.0, 0.0)]
    assert scored(talk, Grade((1.0, 2.0), by="turn")).turns[2].token_rewards == (0.0, 2.0)
    assert judging().samples(talk)[0].turns == ("3", "8")


def test_each_answer_may_have_its_own_places() -> None:
    judged = scored(TALK, Grade((1.0, 0.0, 0.0)), 0.5, at="turn")
    assert [answer.token_rewards for answer in judged.turns] == [(1.0, 0.0, 0.0), ()]
    assert [answer.reward for answer in judged.turns] == [1.0, 0.5]
    last = scored(TALK, Grade(((0, 1, 2.0),)), at="answer")
    assert [answer.token_rewards for answer in last.turns] == [(), (2.0, 0.0)]


def test_a_texts_score_is_added_to_the_last_token_and_so_is_the_environments() -> None:
    both = [Part(name="mine"), Part(name="length", weight=0.5)]
    (score,) = weighted_sum(both, [[(Grade((1.0, 0.0, 0.0, 0.0)), None)], [(4.0, None)]])
    judged = judging().scored(rollout(turn(3, 7, 51, 0, reward=0.25)), [score])
    assert judged.turns[0].token_rewards == (1.0, 0.0, 0.0, 2.25)
    assert judged.turns[0].reward == 3.25 and score.total == 3.0


def test_rewards_of_tokens_cross_processes_with_their_turn() -> None:
    import pickle

    judged = scored(ALONE, Grade((0.1, 0.0, 1.0, 0.25)))
    sent = pickle.loads(pickle.dumps(judged))
    assert sent.turns[0].token_rewards == (0.1, 0.0, 1.0, 0.25)
    assert pickle.loads(pickle.dumps(sent)).turns[0].with_reward(1.0).token_rewards == ()


def test_records_keep_their_values_and_comments() -> None:
    grades = Grade(1.0, {"format": 1.0}, "Well."), Grade(0.0, {"format": 0.0, "tone": 1.0}, "Less so.")
    judged = scored(TALK, *grades, at="turn")
    assert judged.reward_values == {"mine/format": 0.5, "mine/tone": 1.0}
    assert judged.comment == "Well.\nLess so." and judged.turns[0].token_rewards == ()
    both = [Part(name="mine"), Part(name="judge")]
    (score,) = weighted_sum(both, [[(grades[0], None)], [(Grade(None, comment="Not mine."), None)]])
    judged = judging().scored(ALONE, [score])
    assert judged.comment == "mine: Well.\njudge: Not mine." and judged.total_reward == 1.0


def test_spans_need_a_tokenizer() -> None:
    with pytest.raises(RunError, match="no tokenizer can find their tokens"):
        Judging().scored(ALONE, [Score(1.0, earned=(Grade(((0, 1, 1.0),)),))])


def test_a_text_that_the_tokens_do_not_spell_has_its_scores_at_the_end() -> None:
    changed = rollout(replace(ALONE.turns[0], text="three"))
    assert scored(changed, Grade(((0, 1, 1.0),))).turns[0].token_rewards == (0.0, 0.0, 0.0, 1.0)
    stopped = rollout(replace(ALONE.turns[0], text="7 5"))  # a part of what they spell
    assert scored(stopped, Grade(((0, 1, 1.0), (2, 3, 2.0)))).turns[0].token_rewards == (0.0, 1.0, 2.0, 0.0)


@pytest.mark.parametrize("text", ["Grüße, 東京! 🎉 of 3 7\n", "don't  stop ...", "ﬁ\u200d👩‍👩‍👧 x"])
def test_real_tokens_end_where_their_characters_do(text: str) -> None:
    """A tokenizer of bytes cuts characters: each is complete with its last byte."""
    tokenizer = byte_tokenizer(())
    tokens = tokenizer(text)["input_ids"]
    ends = token_ends(tokens, tokenizer.decode)
    complete, seen = [], b""
    for byte in text.encode():
        seen += bytes([byte])
        complete.append(len(seen.decode(errors="ignore")))
    assert ends == complete
    assert places(
        Turn((1,), tuple(tokens), text, (0.0,) * len(tokens), (0,) * len(tokens)), [0], tokenizer.decode
    ) == [len(text[0].encode()) - 1]


def as_bytes(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode(errors="replace")


@given(st.lists(st.sampled_from([*b"\xf0\x9f\x8e\x89\xe6\x9d\xb1\xc3\xbca \xff\x80"]), max_size=30))
@example([*b"\xf0\x9f\x8e\xf0\x9f\x8e\x89"])  # three bytes of a character, then the whole one
def test_behind_broken_bytes_tokens_end_where_their_characters_do(broken: list[int]) -> None:
    tokens = [*broken, *"Grüße 🎉".encode()]
    decoder, seen = getincrementaldecoder("utf-8")("replace"), 0
    expected = [seen := seen + len(decoder.decode(bytes([token]))) for token in tokens]
    ends = token_ends(tokens, as_bytes)
    assert ends[len(broken) :] == expected[len(broken) :]
    assert ends == sorted(ends)


@pytest.mark.parametrize("byte", [0x80, 0xF0, 0xFF])
def test_broken_bytes_are_read_a_few_at_a_time(byte: int) -> None:
    lengths = []

    def counted(tokens: Sequence[int]) -> str:
        lengths.append(len(tokens))
        return as_bytes(tokens)

    assert token_ends([byte] * 500, counted)[-1] == 500
    assert sorted(lengths)[-2] <= 8 and len(lengths) < 500 * 10
