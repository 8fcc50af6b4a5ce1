"""A vLLM engine split over two processes: one distribution, new weights in both, and no half survives."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from contracts.clients import PublishedWeights
from contracts.rollout import Lease, Prompt, Sampling
from learner.algorithms.ppo import PPO
from learner.publishing.weight_publisher import publish
from learner.publishing.weight_sender import WeightSender
from rollout_workers.engines.base import Request
from rollout_workers.fleet.fleet import Fleet
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker
from tests.learner.tiny import make_learner
from tests.rollout_workers.broadcasting import InThread
from tests.rollout_workers.generation import load_lm, perturb, worst_difference
from tests.rollout_workers.test_fleet import generation

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(600)]

SETTINGS = RolloutSettings(
    tensor_parallel_size=2, dtype="float32", kv_cache_gib=0.125, max_concurrent=16, num_threads=1
)


@pytest.fixture
def fleet(models: dict[str, Path]) -> Iterator[Fleet]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    model = str(models["llama-tied"])
    env = {"env_vars": {"OMP_NUM_THREADS": "1"}}
    actor = ray.remote(RolloutWorker).options(num_cpus=0, max_concurrency=6, runtime_env=env)
    fleet = Fleet(lambda is_extra: actor.remote(model, model, None, "vllm", SETTINGS), SETTINGS, print)
    try:
        fleet.wait_until_ready()
        yield fleet
    finally:
        fleet.stop()
        ray.shutdown()


def generate(fleet: Fleet, lm: Any) -> float:
    """The largest difference of a token's log-probability from the Hugging Face model's."""
    sampling = Sampling(max_tokens=12)
    leases = [
        Lease(id, Prompt(f"p/{id}", "a b"), (4 + id % 10, 5), group=id, seed=id, sampling=sampling)
        for id in range(12)
    ]
    generations = {
        rollout.lease_id: generation(rollout) for some in fleet.generate(leases) for rollout in some
    }
    requests = [Request(lease.id, lease.tokens, lease.sampling, lease.seed) for lease in leases]
    assert generations.keys() == {lease.id for lease in leases}
    return worst_difference(lm, requests, generations)


def test_it_is_the_models_distribution_after_each_push_and_a_lost_half_is_a_lost_worker(
    fleet: Fleet, models: dict[str, Path]
) -> None:
    lm = load_lm(models["llama-tied"])
    assert generate(fleet, lm) < 1e-4
    for version in (1, 2):
        fleet.sleep()  # both halves do, and wake with what is pushed
        perturb(lm, seed=version)
        manifest, arrays = publish(lm, version, "float32")
        copies = {name: array.copy() for name, array in arrays.items()}
        fleet.load_weights(PublishedWeights(manifest, ray.put(copies)))
        assert fleet.num_quarantined == 0  # the probe found the new weights in both halves
    assert generate(fleet, lm) < 1e-4

    (worker,) = fleet.pids.values()
    processes = psutil.Process(worker).children(recursive=True)
    halves = [process for process in processes if "VLLM::Worker" in " ".join(process.cmdline())]
    assert len(halves) == 2
    os.kill(halves[1].pid, signal.SIGKILL)

    assert generate(fleet, lm) < 1e-4  # by another worker, which has caught up
    assert fleet.num_quarantined == 1
    assert not psutil.wait_procs(halves, timeout=60)[1]


def test_a_broadcast_reaches_both_halves_as_arrays_do(fleet: Fleet, models: dict[str, Path]) -> None:
    learner = make_learner(models["llama-tied"], PPO())
    sender = WeightSender(learner)
    broadcast = InThread(sender)
    texts = [tuple(4 + (3 * i + k) % 9 for k in range(7)) for i in range(8)]
    for seed in (1, 2):
        perturb(learner.pair.lm, seed)
        fleet.load_weights(broadcast.published())
        assert broadcast.group is not None and broadcast.group.size == 3
    logprobs = fleet.logprobs(texts)
    assert generate(fleet, learner.pair.lm) < 1e-4

    perturb(learner.pair.lm, 3)
    manifest, arrays = publish(learner.pair.lm, 1, "float32")
    fleet.load_weights(PublishedWeights(manifest, {name: array.copy() for name, array in arrays.items()}))
    assert fleet.logprobs(texts) != logprobs
    fleet.load_weights(broadcast.whole())
    assert fleet.logprobs(texts) == logprobs
    assert fleet.num_quarantined == 0
