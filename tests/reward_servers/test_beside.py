"""Graders beside the driver: real processes of Ray without Serve, killed, stopped and hanging."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError, RewardError
from contracts.scores import MetricValue, Sample, Score
from contracts.settings import build
from reward_servers.settings import Part, RewardServersSettings, parts

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]

GRADERS = "tests.reward_servers.graders"
REWARDS = parts(
    [
        {"name": "length", "weight": 0.5},
        {"name": f"{GRADERS}:Moody", "label": "moody"},
        {"name": "increasing_numbers", "label": "rising"},
    ]
)
METRICS = parts([f"{GRADERS}:Vowels", "length"])
MOODY = REWARDS[1:2]


def settings(**options: Any) -> RewardServersSettings:
    return build(RewardServersSettings, {"retries": 2, **options}, "reward_servers")


@pytest.fixture(scope="module")
def client(local_ray: None) -> Iterator[Any]:
    from reward_servers.serving.app import deploy, remove
    from reward_servers.serving.client import RewardClient

    assert deploy(REWARDS, METRICS, settings(), http=False, beside=True) == []
    client = RewardClient(REWARDS, settings())
    yield client
    client.close()
    remove(REWARDS, METRICS)


def pid_of_moody(client: Any) -> int:
    (score,) = client.submit([Sample("pid")]).result(60)
    return int(score.parts["moody"])


def test_plain_graders_share_one_process_and_serve_does_not_start(client: Any) -> None:
    import ray
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    from reward_servers.serving import beside

    actors: dict[Any, set[str]] = {}
    for handle in beside.handles():
        actors.setdefault(handle.actor, set()).add(handle.name)
    alone = [{"reward-moody"}, {"metric-Vowels"}]
    shared = {"reward-length", "reward-rising", "metric-length"}
    assert sorted(map(sorted, actors.values())) == sorted(map(sorted, [*alone, shared]))
    with pytest.raises(ValueError, match=SERVE_CONTROLLER_NAME):
        ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)


def test_a_bad_sample_costs_only_itself_and_answers_keep_their_order(client: Any) -> None:
    fine, bad = client.submit([Sample("a b c"), Sample("raise")]).result(30)
    assert fine == Score(total=2.5, parts={"length": 3.0, "moody": 1.0, "rising": 0.0})  # 0.5 · 3 + 1
    assert bad.total is None
    assert "reward moody: KeyError: 'no such mood'" in bad.error
    calls = [[Sample("w " * (10 * call + row)) for row in range(call % 7 + 1)] for call in range(20)]
    futures = [client.submit(call) for call in calls]
    for call, future in zip(calls, futures, strict=True):
        assert [score.parts["length"] for score in future.result(30)] == [len(s.text.split()) for s in call]


def test_metrics_are_computed_in_their_processes(client: Any) -> None:
    from reward_servers.serving.client import compute_metrics

    values = compute_metrics(METRICS, [Sample("aei o"), Sample("xyz")], timeout_s=30)
    assert values["mine/vowels"] == MetricValue(corpus=4.0, rows=(4.0, 0.0))
    assert values["length/mean_words"].corpus == 1.5


def test_a_killed_process_costs_no_score(
    client: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    victim = pid_of_moody(client)
    with caplog.at_level(logging.WARNING):
        future = client.submit([Sample(f"wait {tmp_path}")] * 64)
        end = time.monotonic() + 60
        while not (tmp_path / str(victim)).exists():  # it is at a call
            assert time.monotonic() < end
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)
        (tmp_path / "go").touch()
        scores = future.result(120)
    assert [score.parts["moody"] for score in scores] == [1.0] * 64
    assert "reward moody: replica lost" in caplog.text and "retry 1 of 2" in caplog.text
    assert pid_of_moody(client) != victim


def test_a_stopped_process_is_replaced(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from reward_servers.serving import actor_watch, beside

    monkeypatch.setattr(actor_watch, "GRADERS_S", 3.0)
    victim, warnings = pid_of_moody(client), list[str]()
    processes = actor_watch.grader_processes(beside.handles(), settings())
    with actor_watch.watched(processes, warnings.append):
        time.sleep(3 * actor_watch.ASK_EVERY_S)  # it was heard once
        os.kill(victim, signal.SIGSTOP)
        assert pid_of_moody(client) != victim
    assert warnings == ["the process of reward-moody gave no sign of life for 3 s. Another one starts"]


def test_a_grader_that_hangs_is_late_and_its_process_is_replaced(client: Any, tmp_path: Path) -> None:
    from reward_servers.serving import actor_watch, beside
    from reward_servers.serving.app import deploy, remove
    from reward_servers.serving.client import RewardClient

    hanging = parts({"name": f"{GRADERS}:Moody", "label": "hanging"})
    impatient = settings(hanging={"timeout_s": 1.0}, retries=0)
    deploy(hanging, (), impatient, http=False, beside=True)
    handles = [handle for handle in beside.handles() if handle.name == "reward-hanging"]
    warnings: list[str] = []
    alone = RewardClient(hanging, impatient)
    with actor_watch.watched(actor_watch.grader_processes(handles, impatient), warnings.append):
        with pytest.raises(RewardError, match=r"reward hanging: no answer within 1 s, 1 times in a row"):
            alone.submit([Sample(f"wait {tmp_path}")]).result(60)
        end = time.monotonic() + 60
        while not warnings:
            assert time.monotonic() < end
            time.sleep(0.1)
    alone.close()
    remove(hanging, ())
    assert "the process of reward-hanging hangs: the grader has been at one batch for" in warnings[0]


def test_a_grader_that_can_not_be_made_is_named_with_its_reason(client: Any) -> None:
    from reward_servers.serving.app import deploy, remove

    broken = [Part(name=f"{GRADERS}:Words", label="words", options={"factor": 1.0}), missing_file()]
    with pytest.raises(InputError, match=r"^reward-broken did not start: .*FileNotFoundError: .*nowhere"):
        deploy(broken, (), settings(), http=False, beside=True)
    remove(broken, ())


def missing_file() -> Part:
    return Part(name=f"{GRADERS}:DiesOnce", label="broken", options={"mark": "/nowhere/mark"})


def test_a_process_that_dies_while_it_starts_is_started_again(client: Any, tmp_path: Path) -> None:
    from reward_servers.serving.app import deploy, remove
    from reward_servers.serving.client import RewardClient

    # Its process dies once, before the constructor ends.
    dying = parts({"name": f"{GRADERS}:DiesOnce", "label": "dying", "mark": str(tmp_path / "mark")})
    deploy(dying, (), settings(), http=False, beside=True)
    again = RewardClient(dying, settings())
    assert again.submit([Sample("a b")]).result(60)[0].total == 2.0
    again.close()
    remove(dying, ())
