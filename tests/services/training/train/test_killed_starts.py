"""Parts of a run that are killed while they start, on real Ray and Serve: each is replaced, and it is said.

Rollout workers are in tests/rollout_workers/test_fleet.py, environments in test_environment_actors.py.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from contracts.errors import LearnerFailed, RunError
from contracts.scores import Sample, Score
from learner.settings import LearnerSettings
from reward_servers.settings import RewardServersSettings, parts
from services.training.loop.learner_restarts import LearnerRestarts

pytestmark = pytest.mark.ray

PATIENCE_S = 120.0
GRADERS = "tests.reward_servers.graders"


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    from services.cluster.ray_cluster import cluster

    with cluster():
        yield


class Model:
    """Contents of a learner's process, without a model; the first that is made there dies, or raises."""

    compiled = SimpleNamespace(failure=None)

    def __init__(self, mark: Path | None = None, raises: str = "") -> None:
        if raises:
            raise RuntimeError(raises)
        if mark is not None and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def progress(self) -> tuple[str, int, int]:
        return "idle", 0, 1


def learner(make: Any, num_processes: int = 1) -> Any:
    """Its processes, starting; the last of them is made so, the others as they should be."""
    import ray

    from learner.actors.group import LearnerGroup
    from learner.actors.process import CALLS_AT_ONCE, LearnerProcess

    actor = ray.remote(LearnerProcess).options(max_concurrency=CALLS_AT_ONCE, num_cpus=0)

    def start(rendezvous: Any) -> Any:
        is_last = rendezvous is None or rendezvous.rank == num_processes - 1
        return actor.remote(make if is_last else Model)

    settings = LearnerSettings(device="cpu", num_processes=num_processes, max_restarts=2)
    return LearnerGroup(start, "float32", settings)


@pytest.mark.parametrize("num_processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_learner_that_is_killed_while_it_starts_is_replaced(tmp_path: Path, num_processes: int) -> None:
    from services.training.train.launch import wait_for_learner

    notes: list[str] = []
    group = learner(partial(Model, tmp_path / "was-here"), num_processes)
    before = group._processes
    wait_for_learner(group, LearnerRestarts(2), notes.append)

    assert len(group.pids()) == num_processes and group._processes != before
    (note,) = notes
    assert note.startswith("the learner died while Whetstone waited for the learner to load its models")
    assert note.endswith("; replacement 1 of 2 starts")
    group.stop()


def test_a_learner_that_raises_as_it_starts_ends_the_run_at_once() -> None:
    from services.training.train.launch import wait_for_learner

    notes: list[str] = []
    group = learner(partial(Model, raises="no such kernel"))
    with pytest.raises(LearnerFailed, match="no such kernel"):
        wait_for_learner(group, LearnerRestarts(2), notes.append)
    assert notes == []
    group.stop()


@pytest.mark.long
def test_learners_that_die_one_after_the_other_end_the_run() -> None:
    from services.training.train.launch import wait_for_learner

    notes: list[str] = []
    group = learner(Dying)
    with pytest.raises(RunError, match=r"that is loss 3 within an hour, and learner\.max_restarts=2"):
        wait_for_learner(group, LearnerRestarts(2), notes.append)
    assert len(notes) == 2
    group.stop()


class Dying:
    def __init__(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def score_of_two_words(name: str, **options: Any) -> list[Score]:
    """By a reward that is deployed for it, and removed."""
    from reward_servers.serving.app import deploy, remove
    from reward_servers.serving.client import RewardClient

    rewards = parts([{"name": f"{GRADERS}:{name}", "label": "words", **options}])
    settings = RewardServersSettings(start_timeout_s=PATIENCE_S)
    deploy(rewards, (), settings, http=False)
    client = RewardClient(rewards, settings)
    try:
        return client.submit([Sample("a b")]).result(PATIENCE_S)
    finally:
        client.close()
        remove(rewards, ())


def test_a_reward_replica_that_is_killed_while_it_starts_is_replaced(tmp_path: Path) -> None:
    mark = tmp_path / "was-here"
    assert score_of_two_words("DiesOnce", mark=str(mark)) == [Score(2.0, {"words": 2.0})]
    assert mark.exists()


@pytest.mark.slow
def test_serves_controller_may_be_killed_while_it_starts_the_servers() -> None:
    """Ray starts another, which knows what it was asked for."""
    victims: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not victims and time.monotonic() < deadline:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):  # it ended a moment ago
                    if " ".join(process.cmdline()[:1]).startswith("ray::ServeController"):
                        process.kill()
                        victims.append(process.pid)
            time.sleep(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    assert score_of_two_words("Words") == [Score(2.0, {"words": 2.0})]
    killer.join()
    assert victims
