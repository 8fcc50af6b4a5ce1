"""Parts that wait for scores: their order, their time-out, and what a look costs."""

import time
from concurrent.futures import Future
from typing import Any

import pytest

from contracts.errors import DeadlineExceeded
from contracts.scores import Score
from services.training.loop.pending import Pending, PendingParts


class Untouched(Future[list[Score]]):
    """A future that tells when it is done, and can't be asked."""

    def done(self) -> bool:
        raise AssertionError("a look asked a part that has no news")


def parts(count: int, timeout_s: float = 60.0, **options: Any) -> tuple[PendingParts, list[Pending]]:
    waiting, made = PendingParts(), [Pending((), Untouched(), timeout_s, **options) for _ in range(count)]
    for part in made:
        waiting.add(part)
    return waiting, made


def test_parts_come_in_the_order_of_their_submission_and_the_others_are_left_alone() -> None:
    waiting, made = parts(4)
    for index in (2, 0):
        made[index].scores.set_result([])
    assert waiting.take_done() == [made[0], made[2]]
    assert waiting.take_done() == [] and waiting
    for index in (3, 1):
        made[index].scores.set_result([])
    assert waiting.take_done() == [made[1], made[3]] and not waiting


def test_the_oldest_part_that_waits_has_the_deadline() -> None:
    waiting, made = parts(2, timeout_s=1.0, since=time.monotonic() - 2.0)
    made[0].scores.set_result([])
    with pytest.raises(DeadlineExceeded, match="waited 1 s for scores"):
        waiting.take_done()


def test_news_let_the_time_of_all_parts_start_anew() -> None:
    waiting, _ = parts(2, timeout_s=1.0, since=time.monotonic() - 2.0)
    waiting.start_anew()
    assert waiting.take_done() == []
