"""Turns that crossed a process lose nothing, and turns that are only forwarded stay packed."""

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import packed, turn
from contracts.turn import NUMBERS, Turn

TURN = Turn((12, 14), (15, 70_000, 2), "6 8", (-0.5, -0.1, -0.0), (4, 4, 5), 0.5)
WHOLE = st.one_of(st.integers(0, 70_000), st.integers(-(2**63), 2**63 - 1), st.integers())
ROW = st.tuples(WHOLE, st.one_of(st.floats(allow_nan=False), st.floats(width=32, allow_nan=False)), WHOLE)


def crossed(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def written_out(value: Turn) -> str:
    """Bits and types: -0.0 differs from 0.0, and 1 from 1.0 and True."""
    return repr(value)


@given(st.lists(ROW), st.lists(WHOLE))
def test_a_turn_comes_out_as_it_went_in(rows: list[tuple[int, float, int]], observation: list[int]) -> None:
    tokens, logprobs, versions = zip(*rows, strict=True) if rows else ((), (), ())
    sent = Turn(tuple(observation), tokens, "text", logprobs, versions, None, True, "seen")
    once = crossed(sent)
    twice = crossed(crossed(sent))
    assert written_out(once) == written_out(twice) == written_out(sent)
    assert once == sent and hash(once) == hash(sent) and copy.deepcopy(once) == sent


def test_what_is_no_number_of_an_array_stays_as_it_is() -> None:
    odd = Turn((), (1, None), "", (float("nan"), None), (0, 1.5))  # type: ignore[arg-type]
    assert written_out(crossed(odd)) == written_out(odd)


def test_a_turn_that_is_passed_on_is_never_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def laid_out(numbers: Any) -> Any:
        raise AssertionError("somebody laid the numbers out")

    got = crossed(TURN)
    monkeypatch.setattr(turn, "unpacked", laid_out)
    rewarded = crossed(got.with_reward(2.0))
    assert (rewarded.num_tokens, rewarded.num_observed, rewarded.reward) == (3, 2, 2.0)
    assert rewarded.oldest_and_newest == (4, 5) and rewarded.text == "6 8"
    assert [rewarded.array(name).tolist() for name in NUMBERS] == [
        [12, 14],
        [15, 70_000, 2],
        [-0.5, -0.1, 0.0],
        [4, 4, 5],
    ]
    with pytest.raises(AssertionError):
        repr(rewarded)


def test_a_new_turn_and_one_that_crossed_answer_alike() -> None:
    for record in (TURN, crossed(TURN)):
        assert (record.num_tokens, record.num_observed, record.oldest_and_newest) == (3, 2, (4, 5))
        assert record.with_reward(1.0) == replace(TURN, reward=1.0)
        assert all(tuple(record.array(name).tolist()) == getattr(TURN, name) for name in NUMBERS)
        with pytest.raises(AttributeError, match="a turn has no 'token'"):
            _ = record.token  # type: ignore[attr-defined]


def test_tokens_take_two_bytes_and_an_engines_logprobs_four() -> None:
    chance = np.random.default_rng(0)
    tokens = tuple(chance.integers(0, 50_000, 8192).tolist())
    logprobs = tuple(chance.random(8192, dtype=np.float32).tolist())
    sent = Turn((), tokens, "", logprobs, (3,) * 8192)
    assert len(pickle.dumps(sent)) < 6 * 8192 + 300
    kinds = [packed.packed(numbers)[0] for numbers in (tokens, logprobs, sent.weight_versions)]
    assert kinds == ["H", "f", "="]
