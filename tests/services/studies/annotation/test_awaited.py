"""Waiting for scores: slow rewards are waited for, and silent ones are not."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import pytest

from contracts.clients import Scoring
from contracts.errors import DeadlineExceeded
from contracts.rollout import Prompt
from contracts.scores import Sample, Score
from services.data.tasks.responses import ResponseRow
from services.terminal.interrupts import Interrupted
from services.training.sources.row_rewards import awaited, samples_of, score_here, scores_alone

ROWS = [ResponseRow(Prompt("p", "a"), text, 0, is_good=True, order=0) for text in ("b", "c")]
SAMPLES = samples_of(ROWS)
SCORES = [Score(1.0, {}), Score(2.0, {})]


class Slow:
    """A reward that answers a text with each look, and all scores with the last one; or none, ever."""

    def __init__(self, looks: int, *, is_silent: bool = False) -> None:
        self._looks, self._is_silent, self._num_answered = looks, is_silent, 0
        self._future: Future[list[Score]] = Future()

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        assert list(samples) == SAMPLES
        return self._future

    def scoring(self) -> Scoring:
        self._num_answered += not self._is_silent
        if self._num_answered == self._looks:
            threading.Timer(0.0, self._future.set_result, [SCORES]).start()
        return Scoring(self._num_answered, {"judge": 2}, ())


def test_a_slow_reward_may_take_longer_than_the_patience() -> None:
    assert awaited(Slow(looks=30), SAMPLES, patience_s=0.2, look_s=0.02) == SCORES  # 0.6 s


def test_a_silent_reward_is_given_up_and_named() -> None:
    with pytest.raises(DeadlineExceeded, match=r"scores of 2 texts: reward judge is alive and has 2 texts"):
        awaited(Slow(looks=1, is_silent=True), SAMPLES, patience_s=0.1, look_s=0.02)


def test_a_part_has_as_much_patience_as_each_of_its_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.training.sources.row_rewards.wait", partial(_soon, wait))
    execute = score_here(Slow(looks=30), patience_s=0.2)
    assert list(execute([(0, ROWS)], scores_alone)) == [(0, SCORES)]


def test_a_wait_ends_where_a_stop_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.training.sources.row_rewards.wait", partial(_soon, wait))

    def stop() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        list(score_here(Slow(looks=1, is_silent=True), 60.0, stop)([(0, ROWS)], scores_alone))


def _soon(waits: Any, futures: Any, timeout: float) -> Any:
    """Wait a fiftieth of what is asked for."""
    return waits(futures, timeout / 50)
