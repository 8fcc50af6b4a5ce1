"""The worker's loop: its inputs while the engine steps, and its outputs."""

import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from contracts.errors import WeightsError, WorkerError
from contracts.rollout import Lease, Prompt, Rollout, Sampling
from contracts.weights import Probe, WeightManifest
from learner.publishing.weight_publisher import publish
from rollout_workers.engines.base import Arrays
from rollout_workers.worker import RolloutWorker
from tests.rollout_workers.generation import SETTINGS, load_lm, perturb

MANIFEST = WeightManifest(7, {}, 0, Probe((1, 2), (-0.5,), 1e-3))
PATIENCE_S = 60.0


def make_worker(engine: str, model: str = "none") -> RolloutWorker:
    address = engine if engine == "transformers" else f"tests.rollout_workers.engines:{engine}"
    return RolloutWorker(model, model, None, address, SETTINGS)


def lease(id: int, num_tokens: int, tokens: tuple[int, ...] = (4, 5)) -> Lease:
    sampling = Sampling(max_tokens=num_tokens, min_tokens=num_tokens)
    return Lease(id, Prompt(f"p/{id}", "a b"), tokens, group=id, seed=id, sampling=sampling)


def gather(worker: RolloutWorker, count: int) -> list[Rollout]:
    rollouts: list[Rollout] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(rollouts) < count and time.monotonic() < deadline:
        rollouts += worker.poll(0.5).rollouts
    return rollouts


def ids(rollouts: Iterable[Rollout]) -> list[int]:
    return [rollout.lease_id for rollout in rollouts]


@pytest.fixture
def worker() -> RolloutWorker:
    made = make_worker("CountingEngine")
    made.ready()
    return made


def test_a_short_rollout_is_shipped_while_a_long_one_goes_on(worker: RolloutWorker) -> None:
    worker.submit([lease(1, num_tokens=500), lease(2, num_tokens=3)])

    report = worker.poll(PATIENCE_S)

    assert ids(report.rollouts) == [2]
    assert report.num_active == 1
    assert ids(gather(worker, 1)) == [1]


def test_a_rollout_carries_its_lease_and_what_the_engine_made(worker: RolloutWorker) -> None:
    worker.submit([lease(5, num_tokens=3, tokens=(8, 9))])

    (rollout,) = gather(worker, 1)

    assert rollout.tokens == (8, 9, 0, 1, 2)
    assert rollout.loss_mask == (0, 0, 1, 1, 1)
    assert (rollout.group, rollout.prompt.id, rollout.text) == (5, "p/5", "counted")
    assert worker.poll(0.0).num_generated == 3


def test_an_idle_poll_answers_empty_at_its_deadline(worker: RolloutWorker) -> None:
    started = time.monotonic()
    report = worker.poll(0.2)

    assert report.rollouts == () and report.num_active == 0
    assert 0.2 <= time.monotonic() - started < 5.0


def test_leases_come_in_while_others_are_generated(worker: RolloutWorker) -> None:
    worker.submit([lease(1, num_tokens=200)])
    worker.poll(0.05)
    worker.submit([lease(2, num_tokens=2)])

    assert ids(gather(worker, 2)) == [2, 1]


def test_weights_are_loaded_between_two_steps_of_a_running_rollout(worker: RolloutWorker) -> None:
    worker.submit([lease(1, num_tokens=100)])
    while worker.poll(0.02).num_generated < 5:
        pass
    worker.load_weights(MANIFEST, {})

    (rollout,) = gather(worker, 1)

    versions = rollout.turns[0].weight_versions
    assert set(versions) == {0, 7} and list(versions) == sorted(versions)
    assert worker.poll(0.0).weight_version == 7


def test_cancelled_leases_never_come_back_and_new_ones_do(worker: RolloutWorker) -> None:
    worker.submit([lease(1, num_tokens=1), lease(2, num_tokens=300)])
    while worker.poll(0.0).num_generated < 2:
        time.sleep(0.01)
    worker.submit([lease(3, num_tokens=1)])
    worker.cancel_all()
    worker.submit([lease(4, num_tokens=1)])

    report = worker.poll(PATIENCE_S)

    assert ids(report.rollouts) == [4] and report.num_active == 0


def test_an_engine_that_fails_is_told_by_every_later_call() -> None:
    worker = make_worker("FailsOnStep")
    worker.ready()
    worker.submit([lease(1, num_tokens=1)])

    for call in (
        lambda: worker.poll(PATIENCE_S),
        lambda: worker.load_weights(MANIFEST, {}),
        worker.cancel_all,
    ):
        with pytest.raises(WorkerError, match="out of memory, say"):
            call()


def test_an_engine_that_does_not_start_says_why() -> None:
    with pytest.raises(WorkerError, match="did not start: no such kernel"):
        make_worker("FailsToStart").ready()


def test_weights_that_arrive_wrong_are_refused(models: dict[str, Path]) -> None:
    """One tensor differs from those that the probe was made with."""
    worker = make_worker("transformers", str(models["llama"]))
    lm = load_lm(models["llama"])
    perturb(lm, seed=1)
    manifest, arrays = publish(lm, 1, "float32")
    right: Arrays = {name: array.copy() for name, array in arrays.items()}
    name = "model.layers.1.mlp.down_proj.weight"
    wrong: Arrays = {**right, name: right[name] * 1.1}

    with pytest.raises(WeightsError, match=r"version 1 arrived wrong.*differ by"):
        worker.load_weights(manifest, wrong)
    assert worker.load_weights(manifest, right) < PATIENCE_S
