"""Rewards of whole groups and coroutines on a real Ray Serve, over three replicas, one of which is killed."""

import io
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as Terminal

from contracts.rollout import FinishReason, Lease, Rollout, Sampling, Turn
from contracts.scores import Sample
from contracts.settings import build
from reward_servers.settings import Part, RewardServersSettings
from services.config.reward_view import Judging
from services.runs.tracking.console import Console
from services.training.loop.collecting import Collected, Collector, FailureBudget
from tests.chat_server import serving
from tests.fakes import FakeWorkers, prompts
from tests.reward_servers.test_judges import Model

pytestmark = [pytest.mark.ray, pytest.mark.slow]

GRADERS = "tests.reward_servers.graders"
NUM_GROUPS, SIZE, REPLICAS = 64, 8, 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    import ray

    from reward_servers.serving.app import shutdown

    ray.init(address="local", num_cpus=2, include_dashboard=False)
    yield
    shutdown()
    ray.shutdown()


def text_of(lease: Lease) -> str:
    """Another text for each lease, of another length for each in its group."""
    place = lease.id % SIZE
    return f"{lease.group}" + "x" * (10 * ((place * 5 + lease.group) % SIZE))


class Writers(FakeWorkers):
    """Finish the texts in any order, a few at a time, as engines do."""

    def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        left = list(leases)
        random.Random(7).shuffle(left)
        while left:
            yield [self._written(left.pop()) for _ in range(min(16, len(left)))]
            time.sleep(0.02)

    def _written(self, lease: Lease) -> Rollout:
        turn = Turn(lease.tokens, (7, 1), text_of(lease), (-0.5, -1.0), (0, 0))
        return Rollout(lease.id, lease.group, lease.prompt, (turn,), FinishReason.STOP)


class Client:
    """A `RewardClient` beside which no metric is served."""

    def __init__(self, parts: Sequence[Part], settings: RewardServersSettings) -> None:
        from reward_servers.serving.client import RewardClient

        self.client = RewardClient(parts, settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


def collected(client: Any, leases: list[Lease], screen: io.StringIO) -> Collected:
    console = Console(Terminal(file=screen, width=200))
    judging = Judging(whole_groups=True)
    collect = Collector(Writers([]), client, FailureBudget(0, 0), console, lambda: None, 120.0, judging)
    return collect(leases)


@pytest.mark.parametrize("name", ["Family", "FamilyLater"])
def test_a_killed_replica_splits_no_group_and_each_is_scored_once(
    name: str, cluster: None, tmp_path: Path
) -> None:
    from reward_servers.serving.app import deploy, remove

    file = tmp_path / "calls.jsonl"
    part = Part(name=f"{GRADERS}:{name}", label=name.lower(), options={"file": str(file)})
    settings = build(RewardServersSettings, {part.label: {"replicas": REPLICAS, "batch_size": 5}}, "")
    assert deploy([part], (), settings, http=False) == []
    file.write_text("")  # without the trial
    prompt = prompts(1)[0]
    leases = [Lease(n, prompt, (11,), n // SIZE, 0, Sampling(max_tokens=4)) for n in range(NUM_GROUPS * SIZE)]
    client, screen, victims = Client([part], settings), io.StringIO(), list[int]()

    def kill() -> None:
        while len(calls := read(file)) < 12:
            time.sleep(0.05)
        victims.append(calls[-1]["pid"])
        os.kill(victims[0], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    batch = collected(client, leases, screen)
    client.close()
    remove([part], ())

    assert victims
    calls = read(file)
    whole = {n: [text_of(lease) for lease in leases if lease.group == n] for n in range(NUM_GROUPS)}
    for call in calls:  # one group each, whole, in the order of its leases
        (group,) = call["groups"]
        assert call["texts"] == whole[int(group.rpartition("/")[2])]
    times = Counter(call["groups"][0] for call in calls)
    assert len(times) == NUM_GROUPS
    again = [group for group, number in times.items() if number > 1]
    for group in again:  # done in the killed replica, whose answer did not get out any more
        pids = [call["pid"] for call in calls if call["groups"] == [group]]
        assert len(pids) == 2 and pids[0] == victims[0] != pids[1]
    assert len(again) <= 16  # calls that a replica takes on at a time
    assert len({call["pid"] for call in calls}) >= REPLICAS
    assert len(batch.rollouts) == NUM_GROUPS * SIZE and batch.num_failed == 0
    for rollout in batch.rollouts:
        lengths = sorted(len(text) for text in whole[rollout.group])
        assert rollout.total_reward == float(lengths.index(len(rollout.text)))


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]


def test_a_coroutine_may_take_longer_than_a_batch_may(cluster: None) -> None:
    """64 texts, four at a time, 0.2 s each: 3.2 s, where a batch of another reward has 1 s."""
    from reward_servers.serving.app import deploy, remove

    part = Part(name=f"{GRADERS}:Sluggish", label="sluggish", options={"seconds": 0.2})
    settings = build(
        RewardServersSettings, {"sluggish": {"timeout_s": 1.0, "concurrency": 4, "cache_size": 0}}, ""
    )
    deploy([part], (), settings, http=False)
    client = Client([part], settings)
    client.take_counts()
    began, future = time.monotonic(), client.submit([Sample("x" * n) for n in range(64)])
    time.sleep(1.2)
    state = client.scoring()
    assert 0 < state.num_answered < 64 and state.lost == ()
    assert str(state) == f"reward sluggish is alive and has {64 - state.num_answered} texts left"
    assert [score.total for score in future.result(60)] == [float(n) for n in range(64)]
    assert time.monotonic() - began > 3.0
    assert client.scoring().at_work == {}
    assert client.take_counts() == {"reward/sluggish/calls": 64.0 + 2.0}  # and those of its trial
    assert client.take_counts() == {}
    client.close()
    remove([part], ())


def test_a_judge_is_served_as_any_reward(cluster: None) -> None:
    from reward_servers.serving.app import deploy, remove

    model = Model()
    with serving(model.answer) as url:
        part = Part(name="judge", options={"url": url, "model": "wise"})
        settings = build(RewardServersSettings, {"judge": {"replicas": 2, "concurrency": 8}}, "")
        assert deploy([part], (), settings, http=False) == []
        num_tried = len(model.requests)
        client = Client([part], settings)
        # A replica answers an equal sample from its cache, if the first one is scored already.
        samples = [Sample("x" * n, prompt) for prompt in ("How long?", "And now?") for n in range(1, 11)]
        scores = client.submit(samples).result(60)
        assert [score.total for score in scores] == pytest.approx([(n - 1) / 9 for n in range(1, 11)] * 2)
        counts = client.take_counts()
        client.close()
        remove([part], ())
    assert counts["reward/judge/tokens"] == 110.0 * counts["reward/judge/requests"]
    # A replica tells its counts with its answers: one that only had the trial has told nothing.
    assert len(model.requests) == 20 + num_tried
    assert counts["reward/judge/requests"] in (20, 20 + num_tried)


def test_groups_that_wait_for_others_have_not_begun_their_time(cluster: None) -> None:
    """Eight groups of 0.4 s each in one replica, where a group has 1.5 s."""
    from reward_servers.serving.app import deploy, remove

    part = Part(name=f"{GRADERS}:SlowFamily", label="slowly")
    settings = build(RewardServersSettings, {"retries": 0, "slowly": {"timeout_s": 1.5}}, "")
    deploy([part], (), settings, http=False)
    client = Client([part], settings)
    samples = [Sample("x" * n, group=f"train/{n // SIZE}") for n in range(8 * SIZE)]
    assert len({score.total for score in client.submit(samples).result(60)}) == 1  # the one process
    client.close()
    remove([part], ())


def test_replicas_share_a_rate_after_there_are_more_of_them(cluster: None) -> None:
    from reward_servers.serving.app import deploy, remove, scale

    part = Part(name=f"{GRADERS}:Sluggish", label="paced", options={"seconds": 0.0})
    settings = build(RewardServersSettings, {"paced": {"rate": 10.0, "cache_size": 0}}, "")
    deploy([part], (), settings, http=False)
    scale("reward", "paced", 3, timeout_s=60)
    client = Client([part], settings)
    client.submit([Sample("x")] * 20).result(60)  # they look around
    began = time.monotonic()
    client.submit([Sample("x")] * 40).result(60)
    assert time.monotonic() - began > 2.8  # 10 a second, not 30
    client.close()
    remove([part], ())
