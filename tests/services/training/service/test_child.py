"""A process with an object: it is made again after a failure, and no failure stops the desk that calls it."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError, RunError
from contracts.rollout import Sampling
from services.training.service import child as module
from services.training.service.child import Child, ChildGivenUp, ChildLost
from services.training.service.jobs import Drawn, Job, Sampled
from services.training.service.sampler_desk import SamplerDesk
from services.training.service.waiters import Waiters


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IMPORTED", [])


def make(flag: Path) -> Any:
    """Return a dictionary; the first time fail, as an engine does that finds no memory."""
    if not flag.exists():
        flag.touch()
        raise ValueError("there is no memory")
    return {"answer": 42}


def test_an_object_that_could_not_be_made_is_made_again(tmp_path: Path) -> None:
    child = Child("sampler", partial(make, tmp_path / "flag"))
    with pytest.raises(RunError, match="no memory"):
        child.start()
    assert child.call("get", "answer") == 42
    child.stop()


def test_a_child_that_dies_too_often_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STARTS", 1)
    (tmp_path / "flag").touch()
    child = Child("trainer", partial(make, tmp_path / "flag"))
    for _ in range(2):
        child.start()
        child._process.kill()
        with pytest.raises(ChildLost):
            child.call("get", "answer")
    with pytest.raises(ChildGivenUp, match="loss 2 within an hour"):
        child.start()


class Failing:
    """A sampler whose process can't be started once."""

    def __init__(self) -> None:
        self.errors: list[Exception] = [OSError("no process can be forked")]

    def call(self, method: str, folder: str | None, jobs: list[Job]) -> dict[str, Sampled | str]:
        if self.errors:
            raise self.errors.pop()
        return {job.id: Sampled((Drawn((5,), (-1.0,), True),), None) for job in jobs}


def test_a_desk_goes_on_after_any_failure() -> None:
    sampler: Any = Failing()
    desk = SamplerDesk(sampler, Waiters())
    desk.start()
    answers = []
    for number in range(2):
        job = Job(f"s/sample/{number}", (3,), Sampling(max_tokens=1), 1, seed=0)
        desk.admit(None, job, "digest")
        ends = time.monotonic() + 20
        while (made := desk.answer_of(job.id)) is None and time.monotonic() < ends:
            time.sleep(0.01)
        assert made is not None
        answers.append(made)
    desk.stop()
    assert [made.failed for made in answers] == [True, False]
    assert b"no process can be forked" in answers[0].body


def test_a_number_of_a_sample_call_has_one_content() -> None:
    sampler: Any = Failing()
    desk = SamplerDesk(sampler, Waiters())
    job = Job("s/sample/1", (3,), Sampling(max_tokens=1), 1, seed=0)
    desk.admit(None, job, "one")
    desk.admit(None, job, "one")
    with pytest.raises(InputError, match="sent before with other content"):
        desk.admit(None, job, "another")
    desk.cancel(job.id)
    with pytest.raises(KeyError):
        desk.answer_of(job.id)
    desk.admit(None, job, "another")
    assert desk.answer_of(job.id) is None


def test_a_child_that_hangs_is_killed_and_another_one_answers() -> None:
    child = Child("trainer", partial(Sleeper, 60.0), within_s=0.5)
    child.start()
    hung = child.pid
    with pytest.raises(ChildLost, match=r"gave no answer for 0.5 s and was killed"):
        child.call("sleep")
    assert child.call("answer") == 42 and child.pid != hung and child.num_starts == 2
    child.stop()


@dataclass
class Sleeper:
    """An object with a call that takes long, as a pass on a GPU that hangs."""

    seconds: float

    def sleep(self) -> None:
        time.sleep(self.seconds)

    def answer(self) -> int:
        return 42
