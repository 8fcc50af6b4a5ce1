"""On a real Ray Serve: more replicas while it runs, a queue that is full, a cache, a corpus of any size."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from contracts.errors import InputError
from contracts.scores import Sample
from contracts.settings import build
from reward_servers.settings import RewardServersSettings, parts
from tests.free_ports import free_port

pytestmark = [pytest.mark.ray, pytest.mark.slow]

GRADERS = "tests.reward_servers.graders"
SLOW = parts({"name": f"{GRADERS}:Slow", "label": "slow"})
REWARDS = (
    *SLOW,
    *parts([{"name": f"{GRADERS}:Moody", "label": "moody"}, {"name": f"{GRADERS}:Tally", "label": "tally"}]),
)
METRICS = parts(f"{GRADERS}:Census")
BATCH = 4


def settings(**options: Any) -> RewardServersSettings:
    # One call at a time for each replica, so that the number of replicas is what counts.
    slow = {"batch_size": BATCH, "max_ongoing_requests": 1, "max_queued_requests": 1}
    moving = {"min_replicas": 1, "max_replicas": 2}
    return build(
        RewardServersSettings, {"slow": slow, "Census": {"batch_size": 2}, "tally": moving, **options}, ""
    )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    import ray

    from reward_servers.serving.app import deploy, shutdown

    port = free_port()
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    try:
        deploy(REWARDS, METRICS, settings(http_port=port), http=True)
        yield f"http://127.0.0.1:{port}"
    finally:
        shutdown()
        ray.shutdown()


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    from reward_servers.serving.client import RewardClient

    client = RewardClient(SLOW, settings())
    yield client
    client.close()


def texts(count: int) -> list[Sample]:
    return [Sample(f"text {number}") for number in range(count)]


def texts_per_s(client: Any, count: int) -> tuple[float, set[int]]:
    """Scored texts a second, and the processes that did it."""
    began = time.perf_counter()
    scores = client.submit(texts(count)).result(60)
    assert len(scores) == count
    return count / (time.perf_counter() - began), {int(score.parts["slow"]) for score in scores}


def pid_of_moody(address: str) -> int:
    answer = httpx.post(f"{address}/score/moody", json={"samples": [{"text": "pid"}]}, timeout=30).json()
    return int(answer["scores"][0]["score"])


def whetstone_scale(*argv: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as a person would while a run goes on."""
    import ray

    code = (
        "import sys\nfrom contracts.errors import InputError\nfrom services.commands.scale import run\n"
        "try: sys.exit(run(sys.argv[1:]))\nexcept InputError as error: sys.exit(f'refused: {error}')"
    )
    environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    return subprocess.run(
        [sys.executable, "-c", code, *argv], env=environment, capture_output=True, text=True, timeout=120
    )


def test_a_full_queue_makes_callers_wait_and_drops_none(address: str) -> None:
    codes: list[int] = []

    def post(number: int) -> float:
        while True:
            body = {"samples": [{"text": f"caller {number}"}] * BATCH}
            response = httpx.post(f"{address}/score/slow", json=body, timeout=30)
            codes.append(response.status_code)
            if response.status_code != 503:
                return len(response.json()["scores"])
            time.sleep(float(response.headers["Retry-After"]))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(post, range(8))) == [BATCH] * 8
    assert codes.count(200) == 8
    assert codes.count(503) > 0
    assert set(codes) == {200, 503}


@pytest.mark.long
def test_four_replicas_score_faster_than_one_and_nothing_else_restarts(client: Any, address: str) -> None:
    other = pid_of_moody(address)
    before, first = texts_per_s(client, 60)
    assert len(first) == 1
    assert before <= 20  # 50 ms a text
    done = whetstone_scale("slow", "4")
    assert done.stdout == "reward slow: 4 up\n", done.stderr
    client.submit(texts(BATCH)).result(30)  # the client looks around
    time.sleep(1)
    after, now = texts_per_s(client, 240)
    assert len(now) == 4
    assert first < now  # the replica that was there goes on
    assert after > 1.5 * before  # a busy machine takes its share of four times as much
    assert pid_of_moody(address) == other


def test_a_call_larger_than_any_batch_stays_whole_for_a_metric(address: str) -> None:
    from reward_servers.serving.client import compute_metrics

    values = compute_metrics(METRICS, texts(300), timeout_s=30)
    assert values["mine/texts"].corpus == 300


def test_what_was_scored_before_is_answered_from_the_cache(address: str) -> None:
    from reward_servers.serving.client import RewardClient

    client = RewardClient(REWARDS[2:], settings())
    first = client.submit(texts(10)).result(30)
    assert {score.parts["tally"] for score in first} == {12.0}  # two of them were the trial's
    assert client.submit(texts(10)).result(30) == first
    assert client.cached() == {"tally": 0.5}
    client.close()
    body = {"samples": [{"text": "text 3"}, {"text": "new"}]}
    answer = httpx.post(f"{address}/score/tally", json=body, timeout=30).json()
    assert [score["score"] for score in answer["scores"]] == [12.0, 13.0]
    assert httpx.get(f"{address}/counts").json()["tally"] == {"samples": 2, "cached": 1}


def test_scaling_refuses_what_is_not_there_or_scales_itself(address: str) -> None:
    from reward_servers.serving.app import scale

    refused = whetstone_scale("slwo", "2")
    assert "refused: no reward 'slwo' is served here; did you mean 'slow'" in refused.stderr
    with pytest.raises(InputError, match=r"no judge 'nope' is served here, nor is any other judge\."):
        scale("judge", "nope", 4, timeout_s=5)
    with pytest.raises(InputError, match=r"reward-tally can't be given 3 replicas"):
        scale("reward", "tally", 3, timeout_s=5)
