"""Graders beside the driver: real processes of Ray without Serve, killed, stopped and hanging."""

import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError, RewardError
from contracts.scores import MetricValue, Sample, Score
from contracts.settings import build
from reward_servers.settings import Part, RewardServersSettings, parts
from tests.until import until

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


def test_serve_does_not_start(client: Any) -> None:
    import ray
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    from reward_servers.serving import beside

    names = {"reward-length", "reward-moody", "reward-rising", "metric-Vowels", "metric-length"}
    assert {handle.name for handle in beside.handles()} == names
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
        until((tmp_path / str(victim)).exists)  # it is at a call
        os.kill(victim, signal.SIGKILL)
        (tmp_path / "go").touch()
        scores = future.result(120)
    assert [score.parts["moody"] for score in scores] == [1.0] * 64
    assert "reward moody: its process died" in caplog.text and "retry 1 of 2" in caplog.text
    assert pid_of_moody(client) != victim


def test_calls_that_were_not_sent_wait_for_the_next_process_and_use_up_no_try(
    client: Any, tmp_path: Path
) -> None:
    narrow = {"batch_size": 1, "max_ongoing_requests": 2}
    part = parts({"name": f"{GRADERS}:Moody", "label": "narrow"})
    with beside_driver(part, retries=0, narrow=narrow) as alone:
        victim = int(alone.submit([Sample("pid")]).result(60)[0].total)
        lost = alone.submit([Sample(f"wait {tmp_path}")])
        until((tmp_path / str(victim)).exists)
        waiting = [alone.submit([Sample("later")]) for _ in range(30)]  # one is sent, 29 are not
        os.kill(victim, signal.SIGKILL)
        (tmp_path / "go").touch()
        assert lost.exception(60) is not None
        ends = [future.exception(120) for future in waiting]
    assert ends.count(None) >= 29


def test_a_text_that_ends_its_process_again_and_again_is_named_by_a_sandbox(client: Any) -> None:
    part = parts({"name": f"{GRADERS}:Moody", "label": "fragile"})
    expected = (
        r"reward fragile: its process died \(\w+\), 2 times in a row, for 1 samples\. If a text ends the "
        r"process, reward_servers\.fragile\.sandbox=\{\} scores the other texts and names that one"
    )
    with beside_driver(part, retries=1) as alone, pytest.raises(RewardError, match=expected):
        alone.submit([Sample("die")]).result(120)


def test_a_stopped_process_is_replaced(client: Any) -> None:
    from reward_servers.serving import actor_watch, beside

    victim, warnings = pid_of_moody(client), list[str]()
    (moody,) = [handle for handle in beside.handles() if handle.name == "reward-moody"]
    watch = actor_watch.grader_process(replace(moody, hangs_after_s=3.0))
    with actor_watch.watched([watch], warnings.append):
        time.sleep(3 * actor_watch.ASK_EVERY_S)  # it was heard once
        os.kill(victim, signal.SIGSTOP)
        assert pid_of_moody(client) != victim
    assert warnings == [
        "the process of reward-moody gave no sign of life for 3 s; raise reward_servers.moody.timeout_s. "
        "Another one starts"
    ]


def test_a_grader_that_hangs_is_late_and_its_process_is_replaced(client: Any, tmp_path: Path) -> None:
    from reward_servers.serving import actor_watch, beside

    hanging = parts({"name": f"{GRADERS}:Moody", "label": "hanging"})
    with beside_driver(hanging, retries=0, hanging={"timeout_s": 1.0}) as alone:
        (handle,) = [handle for handle in beside.handles() if handle.name == "reward-hanging"]
        warnings: list[str] = []
        with actor_watch.watched([actor_watch.grader_process(handle)], warnings.append):
            with pytest.raises(RewardError, match=r"reward hanging: no answer within 1 s, 1 times in a row"):
                alone.submit([Sample(f"wait {tmp_path}")]).result(60)
            until(lambda: bool(warnings))
    assert "the process of reward-hanging hangs: the grader has been at one batch for" in warnings[0]


def test_a_grader_that_can_not_be_made_is_named_with_its_reason(client: Any) -> None:
    broken = [Part(name=f"{GRADERS}:DiesOnce", label="broken", options={"mark": "/nowhere/mark"})]
    expected = r"^reward-broken did not start: .*FileNotFoundError: .*nowhere"
    with pytest.raises(InputError, match=expected), beside_driver(broken):
        pass


def test_a_process_that_dies_while_it_starts_is_started_again(client: Any, tmp_path: Path) -> None:
    dying = parts({"name": f"{GRADERS}:DiesOnce", "label": "dying", "mark": str(tmp_path / "mark")})
    with beside_driver(dying) as again:
        assert again.submit([Sample("a b")]).result(60)[0].total == 2.0


def test_a_process_whose_successor_can_not_load_the_grader_ends_the_wait_with_the_reason(
    client: Any, tmp_path: Path
) -> None:
    part = parts({"name": f"{GRADERS}:FailsAgain", "label": "failing", "mark": str(tmp_path / "mark")})
    with beside_driver(part) as failing:
        assert failing.submit([Sample("a b")]).result(60)[0].total == 2.0
        with pytest.raises(RewardError, match=r"reward-failing: .* did not start: .*FileExistsError"):
            failing.submit([Sample("die")]).result(120)


@contextmanager
def beside_driver(rewards: Sequence[Part], **options: Any) -> Iterator[Any]:
    """Yield a client of rewards that run beside the driver for a time."""
    from reward_servers.serving.app import deploy, remove
    from reward_servers.serving.client import RewardClient

    try:
        deploy(rewards, (), settings(**options), http=False, beside=True)
        client = RewardClient(rewards, settings(**options))
        yield client
        client.close()
    finally:
        remove(rewards, ())
