"""Signs of life of one worker, by hand: a clock that is set, and a stall time-out of 10 s."""

import pytest

from contracts.rollout import FinishReason, Lease, Prompt, Rollout, Sampling
from rollout_workers.fleet.live_worker import SLOW_S, LiveWorker
from rollout_workers.fleet.places import Place
from rollout_workers.worker import WorkerReport

STALL_S = 10.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("rollout_workers.fleet.live_worker.time.monotonic", lambda: now[0])
    return now


def leases(*ids: int) -> list[Lease]:
    return [Lease(id, Prompt(f"p/{id}", "a"), (4,), id, id, Sampling(max_tokens=1)) for id in ids]


def rollouts(*ids: int) -> tuple[Rollout, ...]:
    return tuple(Rollout(id, id, Prompt(f"p/{id}", "a"), (), FinishReason.STOP) for id in ids)


def worker(*leased: int) -> LiveWorker:
    made = LiveWorker("worker 0", 7, Place())
    made.lease(leases(*leased))
    return made


def said(rollouts: list[Rollout]) -> list[int]:
    return [rollout.lease_id for rollout in rollouts]


def test_a_rollout_counts_once_and_only_while_it_is_leased(clock: list[float]) -> None:
    one = worker(1, 2)
    assert said(one.answered(WorkerReport(rollouts(1, 3), 1, 5, 0), STALL_S)) == [1]
    assert said(one.answered(WorkerReport(rollouts(1), 1, 5, 0), STALL_S)) == []
    assert list(one.leases) == [2]


def test_one_that_makes_nothing_is_lost_by_its_own_answer(clock: list[float]) -> None:
    one = worker(1)
    one.answered(WorkerReport((), 1, 5, 0), STALL_S)
    clock[0] = STALL_S + 1
    one.polled()
    clock[0] += 3  # the answer takes that long
    one.answered(WorkerReport((), 1, 5, 0), STALL_S)
    assert one.why_lost(STALL_S) == "made no token for 14 s; rollout.stall_timeout_s=10 is the limit"


def test_an_answer_that_was_fetched_late_accuses_nobody(clock: list[float]) -> None:
    """It was asked in time; then the driver was away."""
    one = worker(1)
    one.answered(WorkerReport((), 1, 5, 0), STALL_S)
    one.polled()
    clock[0] = 5 * STALL_S
    one.answered(WorkerReport((), 1, 5, 0), STALL_S)
    assert one.why_lost(STALL_S) is None


def test_one_without_leases_may_rest_as_long_as_it_likes(clock: list[float]) -> None:
    one = worker()
    for _ in range(5):
        clock[0] += STALL_S + 1
        one.polled()
        one.answered(WorkerReport((), 0, 5, 0), STALL_S)
    assert one.why_lost(STALL_S) is None


def test_one_that_owes_an_answer_is_lost_after_the_time_that_it_was_waited_for(clock: list[float]) -> None:
    one = worker(1)
    one.polled()
    for _ in range(10):
        one.owes_an_answer(1.0)
    assert one.why_lost(STALL_S) is None
    one.owes_an_answer(1.0)
    assert (
        one.why_lost(STALL_S)
        == "made no token for 11 s and does not answer; rollout.stall_timeout_s=10 is the limit"
    )
    one.answered(WorkerReport((), 1, 5, 0), STALL_S)
    assert one.why_lost(STALL_S) is None


def test_what_was_answered_before_it_was_told_to_forget_does_not_count(clock: list[float]) -> None:
    one = worker(1)
    one.cancel()
    one.lease(leases(1))  # of the same id, once more
    assert one.answered(WorkerReport(rollouts(1), 1, 5, 0), STALL_S) == []
    assert said(one.answered(WorkerReport(rollouts(1), 1, 5, 0, num_cancels=1), STALL_S)) == [1]


def test_a_worker_whose_tokens_come_gets_on(clock: list[float]) -> None:
    one = worker(1)
    clock[0] = 25.0
    one.answered(WorkerReport((), 1, 5, 0), STALL_S)
    clock[0] = 25.0 + SLOW_S
    assert one.gets_on
    clock[0] += 1.0
    assert not one.gets_on
