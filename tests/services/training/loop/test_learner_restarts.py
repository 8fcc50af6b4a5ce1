"""When another learner is worth a try, by hand: with three to lose, and a clock that is set."""

import pytest

from contracts.errors import LearnerFailed, LearnerLost, RunError, WorkerError
from contracts.processes.restart_budget import LAPSE_S, RestartBudget
from services.training.loop.learner_restarts import LearnerRestarts

DIED = LearnerLost("it died")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("contracts.processes.restart_budget.time.monotonic", lambda: now[0])
    return now


def test_losses_lapse_once_the_run_has_got_further(clock: list[float]) -> None:
    restarts = LearnerRestarts(3)
    for number in range(20):
        clock[0] += LAPSE_S / 3 + 1
        assert restarts.spend(DIED, iteration=number) == f"replacement {min(number + 1, 3)} of 3"


def test_a_run_that_gets_no_further_ends_however_slowly_it_fails(clock: list[float]) -> None:
    restarts = LearnerRestarts(3)
    for _ in range(3):
        restarts.spend(DIED, iteration=7)
        clock[0] += 2 * LAPSE_S
    with pytest.raises(RunError, match=r"it died; that is loss 4 .* learner\.max_restarts=3"):
        restarts.spend(DIED, iteration=7)


def test_what_is_raised_gets_one_more_try_in_an_iteration_whatever_its_words() -> None:
    restarts = LearnerRestarts(3)
    restarts.spend(LearnerFailed("8 GiB wanted, 7.3 free"), iteration=7)
    restarts.spend(LearnerFailed("8 GiB wanted, 7.2 free"), iteration=8)
    with pytest.raises(RunError, match="two learners raised in iteration 8, and so would a third: 8 GiB"):
        restarts.spend(LearnerFailed("8 GiB wanted, 7.1 free"), iteration=8)


def test_losses_of_workers_lapse_after_an_hour_whatever_the_run_does(clock: list[float]) -> None:
    budget = RestartBudget(1, "rollout.max_restarts", WorkerError)
    assert budget.spend("worker 0 died") == 1
    clock[0] += LAPSE_S + 1
    assert budget.spend("worker 1 died") == 1
    clock[0] += LAPSE_S - 1
    with pytest.raises(WorkerError, match=r"worker 2 died; that is loss 2 .* rollout\.max_restarts=1"):
        budget.spend("worker 2 died")
