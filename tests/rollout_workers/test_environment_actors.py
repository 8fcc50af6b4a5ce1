"""Environments in separate processes: dead, hanging or raising ones are replaced, others continue."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import ray

from contracts.errors import EpisodeError, InputError
from contracts.rollout import FinishReason, Lease, Prompt, Rollout, Sampling
from rollout_workers.environment_actors import RayEnvironments
from rollout_workers.episodes import Episodes
from rollout_workers.settings import RolloutSettings
from tests.rollout_workers.episodes import WritingEngine
from tests.rollout_workers.test_episodes import tokenizer
from tests.rollout_workers.worlds import Moody

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def lease(number: int, **meta: str) -> Lease:
    prompt = Prompt(f"p/{number}", "", meta=meta)
    return Lease(number, prompt, (1,), group=number, seed=number, sampling=Sampling(max_tokens=2))


def play(settings: Moody, leases: Sequence[Lease]) -> tuple[list[Rollout], Episodes, list[float]]:
    """Rollouts in the order in which they finish, and when."""
    environments = RayEnvironments(settings)
    engine = WritingEngine(tokenizer("words"), None, lambda request: (6,))
    episodes = Episodes(settings, environments, engine, RolloutSettings())  # type: ignore[arg-type]
    episodes.admit(leases)
    rollouts: list[Rollout] = []
    times: list[float] = []
    started = time.monotonic()
    while len(rollouts) < len(leases) and time.monotonic() - started < 90:
        requests, finished = episodes.advance(engine_is_idle=True)
        rollouts += finished
        times += [time.monotonic() - started] * len(finished)
        episodes.on_generations([engine.answer(request) for request in requests])
    environments.close()
    return rollouts, episodes, times


def test_killed_hung_and_raising_environments_are_replaced_and_their_episodes_played_again(
    tmp_path: Path,
) -> None:
    moods = ("", "dies", "hangs", "raises")
    leases = [lease(i, mood=mood, once=str(tmp_path / f"once{i}")) for i, mood in enumerate(moods)]
    rollouts, episodes, _ = play(Moody(num_parallel=4, step_timeout_s=5.0), leases)

    assert sorted(rollout.lease_id for rollout in rollouts) == [0, 1, 2, 3]
    assert episodes.num_restarts == 3
    for rollout in rollouts:  # none has a hole: two turns, both rewarded
        assert rollout.finish_reason is FinishReason.STOP
        assert [turn.reward for turn in rollout.turns] == [0.5, 0.5]


def test_one_that_is_killed_while_it_starts_is_replaced(tmp_path: Path) -> None:
    rollouts, episodes, _ = play(Moody(num_parallel=1, dies_once=str(tmp_path / "once")), [lease(0)])

    (rollout,) = rollouts
    assert rollout.finish_reason is FinishReason.STOP and episodes.num_restarts == 1


def test_what_fails_again_and_again_is_shipped_as_failed_with_the_reason() -> None:
    leases = [lease(0, mood="raises"), lease(1, mood="wrong input"), lease(2)]
    rollouts, episodes, _ = play(Moody(num_parallel=3, max_attempts=2), leases)
    raising, wrong, good = sorted(rollouts, key=lambda rollout: rollout.lease_id)

    assert raising.finish_reason is wrong.finish_reason is FinishReason.FAILED
    assert raising.turns == wrong.turns == ()
    assert (type(raising.error), str(raising.error)) == (
        EpisodeError,
        "RuntimeError: the dice rolled off the table",
    )
    # the user's to mend: its class crosses two processes' borders
    assert (type(wrong.error), str(wrong.error)) == (InputError, "prompt p/1: no such game")
    assert good.total_reward == 1.0
    assert episodes.num_restarts == 3  # wrong input is not tried again


def test_a_stopped_process_is_ended(tmp_path: Path) -> None:
    once = tmp_path / "once"
    environments = RayEnvironments(Moody(step_timeout_s=1.0))
    seat = environments.take()
    assert seat is not None
    prompt = Prompt("p/0", "", meta={"mood": "hangs", "once": str(once)})
    environments.reset(seat, prompt, 0)
    _receive(environments)
    environments.step(seat, "go")
    ((_, first),) = _receive(environments)
    pid = int(first.info["pid"])  # type: ignore[union-attr]
    environments.step(seat, "go")
    ((_, reply),) = _receive(environments)

    assert str(reply.error) == (  # type: ignore[attr-defined]
        "step() did not answer for 1 s; raise environment.step_timeout_s"
    )
    deadline = time.monotonic() + 5
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(pid)
    environments.close()


def test_environments_are_closed_before_their_processes_end_and_a_stuck_one_is_not_waited_for(
    tmp_path: Path,
) -> None:
    environments = RayEnvironments(Moody(num_parallel=3, closed=str(tmp_path)))
    seats = [environments.take() for _ in range(3)]
    for seat, mood in zip(seats, ("", "", "hangs"), strict=True):
        assert seat is not None
        environments.reset(seat, Prompt("p/0", "", meta={"mood": mood}), 0)
    while environments.num_asked:
        environments.receive(0.2)
    for _ in range(2):  # at its second step the last one stops
        for seat in seats[-1:]:
            environments.step(seat or 0, "go")
        environments.receive(1.0)
    started = time.monotonic()
    environments.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert time.monotonic() - started < 30


def test_a_slow_environment_does_not_hold_up_the_others() -> None:
    """Two seats share six quick episodes while a slow one plays."""
    environments = RayEnvironments(Moody(num_parallel=2, sleep_s=0.5))
    seats = [environments.take(), environments.take()]
    for seat in seats:
        assert seat is not None
        environments.reset(seat, Prompt("p/0", ""), 0)
    while environments.num_asked:
        environments.receive(0.5)
    started = time.monotonic()
    for seat in seats:
        assert seat is not None
        environments.step(seat, "go")
    while environments.num_asked:
        environments.receive(0.05)
    assert time.monotonic() - started < 0.9  # side by side, not one after the other
    environments.close()


def _receive(environments: RayEnvironments) -> list[tuple[int, object]]:
    while environments.num_asked:
        if replies := environments.receive(0.2):
            return list(replies)
    raise AssertionError("nothing was asked")


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return os.path.exists(f"/proc/{pid}")
