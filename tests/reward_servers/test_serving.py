"""The reward servers on a real Ray Serve: by handle and by HTTP, scaled, lost and refused."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from contracts.errors import InputError, RewardError
from contracts.rollout import Prompt
from contracts.scores import MetricValue, Sample, Score
from contracts.settings import build
from reward_servers.serving.http import MOST_BYTES
from reward_servers.settings import RewardServersSettings, ServerSettings, parts
from reward_servers.user_rewards.trial import trial_of
from tests.free_ports import free_port
from tests.reward_servers.test_math import TOWERS

pytestmark = pytest.mark.ray

GRADERS = "tests.reward_servers.graders"
REWARDS = parts([{"name": "length", "weight": 0.5}, {"name": f"{GRADERS}:Moody", "label": "moody"}])
METRICS = parts(f"{GRADERS}:Vowels")
MOODY_ALONE = REWARDS[1:]
TRIAL = trial_of([Prompt("p/0", "What is 6 · 7?"), Prompt("p/1", "Who?")])


def settings(**options: Any) -> RewardServersSettings:
    # One call at a time and one waiting, so that the queue's limit can be met; two replicas of this one only.
    moody = {"replicas": 2, "batch_size": 4, "max_ongoing_requests": 1, "max_queued_requests": 1}
    return build(RewardServersSettings, {"moody": moody, **options}, "reward_servers")


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

    client = RewardClient(REWARDS, settings())
    yield client
    client.close()


def num_replicas(application: str) -> int:
    from ray import serve

    return serve.status().applications[application].deployments[application].replica_states.get("RUNNING", 0)


def pids(client: Any) -> set[int]:
    """The processes behind the `moody` reward, found by asking often enough to meet both."""
    scores = [score for _ in range(10) for score in client.submit([Sample("pid")] * 8).result(30)]
    return {int(score.parts["moody"]) for score in scores}


def test_every_part_scores_and_a_bad_sample_costs_only_itself(client: Any) -> None:
    fine, bad = client.submit([Sample("a b c"), Sample("raise")]).result(30)
    assert fine == Score(total=2.5, parts={"length": 3.0, "moody": 1.0})  # 0.5 · 3 + 1
    assert bad.total is None
    assert bad.parts == {"length": 1.0}
    assert "reward moody: KeyError: 'no such mood'" in bad.error


def test_answers_keep_their_order_over_chunks_and_concurrent_calls(client: Any) -> None:
    calls = [[Sample("w " * (10 * call + row)) for row in range(call % 7 + 1)] for call in range(20)]
    futures = [client.submit(call) for call in calls]
    for call, future in zip(calls, futures, strict=True):
        assert [score.parts["length"] for score in future.result(30)] == [len(s.text.split()) for s in call]
    assert client.submit([]).result(30) == []


def test_metrics_are_computed_by_their_deployment(address: str) -> None:
    from reward_servers.serving.client import compute_metrics

    values = compute_metrics(METRICS, [Sample("aei"), Sample("xyz")], timeout_s=30)
    assert values == {"mine/vowels": MetricValue(corpus=3.0, rows=(3.0, 0.0))}
    with pytest.raises(RewardError, match="metric Vowels: there are no samples"):
        compute_metrics(METRICS, [], timeout_s=30)


def test_http_speaks_the_schema_that_it_serves(address: str) -> None:
    listing = httpx.get(f"{address}/").json()
    assert (listing["rewards"], listing["metrics"]) == (["length", "moody"], ["Vowels"])
    schema = httpx.get(f"{address}{listing['schema']}").json()
    for route, label, expected in (
        ("score", "length", {"scores": [{"score": 2.0, "error": None}]}),
        ("metric", "Vowels", {"metrics": {"mine/vowels": {"corpus": 2.0, "rows": [2.0]}}}),
    ):
        request = {"samples": [{"text": "one by", "prompt": "p", "references": ["r"], "meta": {"k": 1}}]}
        if route == "metric":
            request["samples"][0]["text"] = "aei"[:2]
        response = httpx.post(f"{address}/{route}/{label}", json=request, timeout=30)
        assert (response.status_code, response.json()) == (200, expected)
        jsonschema.validate(request, schema[f"POST /{route}/{{label}}"]["request"])
        jsonschema.validate(response.json(), schema[f"POST /{route}/{{label}}"]["response"])


def test_http_says_what_is_wrong_with_a_request(address: str) -> None:
    def post(path: str, body: str) -> tuple[int, str]:
        form = {"content-type": "application/x-www-form-urlencoded"}  # `curl -d` sends this with any body
        response = httpx.post(f"{address}/{path}", content=body, headers=form, timeout=30)
        return response.status_code, response.text

    good = '{"samples": [{"text": "a"}]}'
    assert post("score/length", good) == (200, '{"scores":[{"score":1.0,"error":null}]}')
    for path, body, code, reason in (
        ("score/lenght", good, 404, "did you mean 'length'"),
        ("metric/vowels", good, 404, "did you mean 'Vowels'"),
        ("score/length", '{"samples": [', 422, "Invalid JSON"),
        ("score/length", '{"samples": [{"txt": "a"}]}', 422, "Field required"),
        ("score/length", '{"samples": []}', 422, "at least 1 item"),
    ):
        status, text = post(path, body)
        assert status == code
        assert reason in text


def test_http_is_guarded_behind_serves_proxy(address: str) -> None:
    """Names that others made point here, other pages, bodies of any size: none comes to the queue."""
    good = {"samples": [{"text": "a"}]}
    for headers, status in (
        ({"Host": "evil.example"}, 400),
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ):
        answered = httpx.post(f"{address}/score/length", json=good, headers=headers, timeout=30)
        assert answered.status_code == status
    large = (b" " * 2**20 for _ in range(MOST_BYTES // 2**20 + 2))
    for content in (b" " * (MOST_BYTES + 1), large):
        answered = httpx.post(f"{address}/score/length", content=content, timeout=60)
        assert answered.status_code == 413 and "send fewer samples" in answered.json()["detail"]


def test_http_refuses_what_exceeds_the_queue(address: str) -> None:
    def post(_: int) -> int:
        body = {"samples": [{"text": "sleep"}]}
        return httpx.post(f"{address}/score/moody", json=body, timeout=30).status_code

    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(post, range(8)))
    assert set(codes) == {200, 503}  # two are scored, one waits, the others come back


def test_a_full_queue_makes_the_client_wait(client: Any) -> None:
    from reward_servers.serving.client import RewardClient

    other = RewardClient(MOODY_ALONE, settings())
    futures = [caller.submit([Sample("nap")] * 16) for caller in (client, other) for _ in range(2)]
    assert all(score.parts["moody"] == 1.0 for future in futures for score in future.result(30))
    other.close()


def test_an_answer_that_stays_away_is_an_error_that_says_so(address: str) -> None:
    from reward_servers.serving.app import deploy, remove
    from reward_servers.serving.client import RewardClient

    rewards = parts({"name": f"{GRADERS}:Moody", "label": "late"})
    impatient = build(RewardServersSettings, {"retries": 1, "late": {"timeout_s": 0.6}}, "")
    deploy(rewards, (), impatient, http=False)
    client = RewardClient(rewards, impatient)
    with pytest.raises(RewardError, match=r"reward late: no answer within 0\.6 s, 2 times"):
        client.submit([Sample("sleep")]).result(30)
    client.close()
    remove(rewards, ())


def test_answers_of_a_reward_with_deadlines_of_its_own_may_take_longer_than_a_batch(address: str) -> None:
    from reward_servers.serving.app import deploy, remove
    from reward_servers.serving.client import find_answers

    hangs, _ = TOWERS["digits"]
    rewards = parts({"name": "math", "limits": {"seconds": 3.0}})
    impatient = build(RewardServersSettings, {"retries": 1, "math": {"timeout_s": 0.6}}, "")
    deploy(rewards, (), impatient, http=False)
    assert find_answers([("reward", rewards[0])], [hangs, r"\boxed{7}"], impatient) == [None, "7"]
    remove(rewards, ())


def test_closing_a_client_cancels_what_is_under_way(address: str) -> None:
    from reward_servers.serving.client import RewardClient

    client = RewardClient(MOODY_ALONE, settings())
    future = client.submit([Sample("sleep")])
    time.sleep(0.1)
    client.close()
    assert future.cancelled()


def test_a_replica_whose_grader_hangs_calls_itself_ill() -> None:
    from reward_servers.serving.replicas import Late, RewardReplica

    async def scenario() -> None:
        replica = RewardReplica(MOODY_ALONE[0], ServerSettings(timeout_s=0.05))
        replica.check_health()
        call = asyncio.create_task(replica.score([Sample("sleep")]))
        await asyncio.sleep(0.3)  # beyond twice the time-out
        with pytest.raises(RewardError, match="at one batch for"):
            replica.check_health()
        assert isinstance(await call, Late)
        await asyncio.sleep(1.2)  # until it has thought of an answer after all
        replica.check_health()

    asyncio.run(scenario())


def test_who_is_not_deployed_can_not_be_called(address: str) -> None:
    from reward_servers.serving.client import RewardClient

    with pytest.raises(InputError, match="reward dates is not deployed"):
        RewardClient(parts("dates"), RewardServersSettings())


def test_scaling_one_leaves_the_other_alone(client: Any) -> None:
    from reward_servers.serving.app import deploy

    assert (num_replicas("reward-length"), num_replicas("reward-moody")) == (1, 2)
    before = pids(client)
    assert len(before) == 2
    deploy(REWARDS[:1], (), build(RewardServersSettings, {"length": {"replicas": 2}}, ""), http=False)
    assert (num_replicas("reward-length"), num_replicas("reward-moody")) == (2, 2)
    assert pids(client) == before


def test_a_killed_replica_costs_no_score(
    client: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    victim = pids(client).pop()
    with caplog.at_level(logging.WARNING):
        future = client.submit([Sample(f"wait {tmp_path}")] * 64)
        end = time.monotonic() + 60
        while not (tmp_path / str(victim)).exists():  # it is at a call
            assert time.monotonic() < end
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)
        (tmp_path / "go").touch()
        scores = future.result(120)
    assert [score.total for score in scores] == [2.0] * 64
    assert "reward moody: its process died" in caplog.text
    assert "retry 1 of 2" in caplog.text


def test_a_controller_that_hangs_is_replaced_and_calls_that_wait_for_it_go_on(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray
    from ray.serve.context import _get_global_client

    from reward_servers.serving import actor_watch

    monkeypatch.setattr(actor_watch, "LEAST_S", 2.0)
    warnings: list[str] = []
    patience = build(RewardServersSettings, {"default": {"timeout_s": 2}}, "")
    with actor_watch.watched([actor_watch.controller(patience)], warnings.append):
        pid = ray.get(_get_global_client()._controller.get_pid.remote())
        time.sleep(3 * actor_watch.ASK_EVERY_S)  # it was heard once
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + 60
        while not num_replicas("reward-length"):  # a new one has to find those that are there
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert ray.get(_get_global_client()._controller.get_pid.remote()) != pid
    assert warnings == [
        "Serve's controller gave no sign of life for 2 s; raise reward_servers.default.timeout_s. "
        "Another one starts"
    ]


def test_a_server_that_can_not_start_says_why(address: str) -> None:
    from reward_servers.serving.app import deploy

    with pytest.raises(InputError, match=r"reward-Unmakeable did not start: .*my_reward_model\.bin$"):
        deploy(parts(f"{GRADERS}:Unmakeable"), (), RewardServersSettings(), http=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Mapped", r"reward Mapped: score\(\) returned a dict .* expected a list of 2 numbers"),
        ("Hanging", r"reward Hanging: no answer for two texts within 2 s; raise reward_servers\.default\.t"),
        ("Deadly", r"reward Deadly: its process died in a call of two texts"),
    ],
)
def test_what_does_not_answer_as_it_should_is_refused_and_not_served(
    address: str, name: str, message: str
) -> None:
    from ray import serve

    from reward_servers.serving.app import deploy

    options = {"timeout_s": 2.0} if name == "Hanging" else {}
    started = build(RewardServersSettings, {name: options}, "")
    with pytest.raises(InputError, match=message):
        deploy(parts(f"{GRADERS}:{name}"), (), started, http=False, trial=TRIAL)
    deadline = time.monotonic() + 60
    while f"reward-{name}" in serve.status().applications:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_should_be_known_of_a_reward_is_told(address: str) -> None:
    from reward_servers.serving.app import deploy, remove

    rewards = parts(f"{GRADERS}:Misspelt")
    (warning,) = deploy(rewards, (), RewardServersSettings(), http=False)  # the texts are made up
    assert warning.startswith("reward Misspelt: none of 2 texts could be scored")
    remove(rewards, ())
