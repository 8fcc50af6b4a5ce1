"""Calls of coroutines: side by side up to a limit, within a rate, and again after faults that pass."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.errors import RewardError
from contracts.scores import Sample
from contracts.settings import build
from reward_servers.chat_models import backoff
from reward_servers.local import LocalRewardClient
from reward_servers.server import RewardServer
from reward_servers.settings import Part, RewardServersSettings, ServerSettings
from reward_servers.user_rewards.coroutines import Coroutines


class Desk:
    """Takes a moment for each call, and writes down when they came and how many were there at once."""

    def __init__(self, took_s: float = 0.05) -> None:
        self.took_s, self.at_once, self.most_at_once = took_s, 0, 0
        self.came: list[float] = []

    async def call(self, value: int = 0) -> int:
        self.came.append(time.monotonic())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(self.took_s)
        self.at_once -= 1
        return value


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(backoff.pause_s, "__defaults__", (None, 0.01))


def test_they_run_side_by_side_up_to_the_limit_and_keep_their_order() -> None:
    desk, began = Desk(), time.monotonic()
    calls = Coroutines(ServerSettings(concurrency=4))
    results = calls.submit([lambda n=n: desk.call(n) for n in range(12)]).result(30)  # type: ignore[misc]
    assert results == list(range(12))
    assert desk.most_at_once == 4
    assert time.monotonic() - began < 12 * desk.took_s + 1.0


def test_no_more_than_the_rate_begin_in_a_second_over_all_replicas() -> None:
    """20 a second over two replicas: this one makes a call each 0.1 s."""
    desk = Desk(0.0)
    calls = Coroutines(ServerSettings(rate=20.0, replicas=2, concurrency=8))
    began = time.monotonic()
    calls.submit([desk.call] * 5).result(30)
    after = [at - began for at in desk.came]  # a busy machine may be late, and never early
    assert all(at > 0.1 * place - 0.02 for place, at in enumerate(after)), after


@pytest.mark.usefixtures("soon")
def test_a_call_that_raises_is_made_again_and_the_last_error_is_told() -> None:
    tries: list[str] = []

    async def recovers() -> str:
        tries.append("recovers")
        if tries.count("recovers") < 3:
            raise ConnectionError("busy")
        return "done"

    async def never() -> str:
        tries.append("never")
        raise ConnectionError(f"busy {tries.count('never')}")

    calls = Coroutines(ServerSettings(retries=2))
    done, gone = calls.submit([recovers, never]).result(30)
    assert (done, str(gone)) == ("done", "busy 3")
    assert (tries.count("recovers"), tries.count("never")) == (3, 3)


@pytest.mark.parametrize("error", [TypeError("a mistake in the code"), RewardError("the reward's own word")])
def test_what_another_attempt_would_repeat_is_not_made_again(error: Exception) -> None:
    tries: list[int] = []

    async def mistaken() -> None:
        tries.append(1)
        raise error

    (raised,) = Coroutines(ServerSettings()).submit([mistaken]).result(30)
    assert raised is error and len(tries) == 1


@pytest.mark.usefixtures("soon")
def test_a_call_has_a_deadline_and_others_do_not_pay_for_it() -> None:
    calls = Coroutines(ServerSettings(timeout_s=2.0, retries=1))
    late, fine = calls.submit([Desk(30.0).call, Desk(0.0).call]).result(60)
    assert fine == 0 and isinstance(late, RewardError) and str(late) == "no answer within 2 s"


def test_the_other_side_may_ask_for_a_pause() -> None:
    """As the errors of HTTP clients hold it: in the response's headers."""
    came: list[float] = []

    async def limited() -> str:
        came.append(time.monotonic())
        if len(came) == 1:
            error: Any = ConnectionError("429")
            error.response = SimpleNamespace(headers={"retry-after": "3"})
            raise error
        return "done"

    assert Coroutines(ServerSettings()).submit([limited]).result(30) == ["done"]
    assert came[1] - came[0] >= 3.0  # without the header it would be 1 s


def test_a_loop_that_a_coroutine_blocks_shows() -> None:
    released = threading.Event()

    async def blocks() -> None:
        released.wait(60)

    calls = Coroutines(ServerSettings(timeout_s=0.05, retries=0))
    assert calls.busy_s == 0.0
    future = calls.submit([blocks])
    end = time.monotonic() + 60
    while calls.busy_s < 0.2 and time.monotonic() < end:
        time.sleep(0.01)
    assert calls.busy_s >= 0.2
    released.set()
    future.result(30)
    assert calls.busy_s == 0.0


def test_without_a_cluster_the_settings_of_a_server_hold_too() -> None:
    slow = Part(name="tests.reward_servers.graders:Sluggish", label="slow", options={"seconds": 30.0})
    servers = build(RewardServersSettings, {"slow": {"timeout_s": 0.1, "retries": 0}}, "reward_servers")
    (score,) = LocalRewardClient([slow], servers).submit([Sample("a")]).result()
    assert score.total is None and "no answer within 0.1 s" in (score.error or "")


def test_counts_are_told_once_whatever_is_added_meanwhile() -> None:
    server = RewardServer(
        Part(name="tests.reward_servers.graders:Sluggish", label="slow", options={"seconds": 0.0})
    )
    done, counted = threading.Event(), [0.0]

    def take() -> None:
        while not done.is_set():
            counted[0] += server.take_counts().get("calls", 0.0)

    taking = threading.Thread(target=take)
    taking.start()
    for _ in range(50):
        server.score([Sample("a")] * 20)
    done.set()
    taking.join()
    assert counted[0] + server.take_counts().get("calls", 0.0) == 50 * 20
