"""`learner.push=changed`: less travels, and the run is the same; whoever comes late has the whole."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from contracts.errors import LearnerLost
from contracts.rollout import Lease, Prompt, Rollout, Sampling
from contracts.weights import ChangedElements
from rollout_workers.fleet.fleet import Fleet
from services.cluster.ray_cluster import cluster
from services.config.compose import run_settings
from services.config.settings import RunSettings
from services.models.files import read_model
from services.training.preflight.capacity.memory_model import MemoryNeeds
from services.training.preflight.deployment import Deployment, deployment_of
from services.training.train import launch
from services.training.train.ray_machine import ray_machine
from tests.learner.tiny import random_rollouts
from tests.local_run import train_here
from tests.models import make_tiny_model
from tests.runs import results

OPTIONS = (
    "task=increasing_numbers",
    "task.num_prompts=16",
    "task.num_eval_prompts=4",
    "rollout.prompts_per_iteration=8",
    "rollout.max_tokens=8",
    "rollout.engine=transformers",
    "rollout.num_threads=1",
    "rollout.dtype=bfloat16",
    "learner.num_threads=1",
    "learner.device=cpu",
    "algorithm.learning_rate=1e-6",
    "algorithm.num_epochs=1",
    "tracking.enabled=false",
)
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def settings(model: Path, folder: Path, *overrides: str) -> RunSettings:
    return run_settings([*OPTIONS, f"model.path={model}", f"output_dir={folder}", *overrides])


@pytest.mark.parametrize("more", [("rollout.max_staleness=1",), ("algorithm=nlpo", "save_every=1")])
def test_a_run_is_the_same_and_less_travels(model: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    def run(push: str, iterations: int = 3) -> list[dict[str, Any]]:
        chosen = settings(
            model, tmp_path, f"run_name={push}", f"learner.push={push}", f"iterations={iterations}", *more
        )
        return results(train_here(chosen).rollout_info())

    whole = run("whole")
    if "save_every=1" in more:  # goes on from a checkpoint
        run("changed", 2)
    changed = run("changed")
    pushed = [[row.pop("weights/pushed_mb") for row in rows] for rows in (whole, changed)]
    if "rollout.max_staleness=1" in more:  # there timing decides which weights write a token
        assert [row.keys() for row in changed] == [row.keys() for row in whole]
    else:
        assert changed == whole
    assert all(0 < less < 0.7 * all_of_them for all_of_them, less in zip(*pushed, strict=True))


def deployed_on_ray(run: RunSettings) -> Deployment:
    return deployment_of(run, read_model(run.model), ray_machine())


@pytest.mark.parametrize(("num_gpus", "dtype"), [(2, "bfloat16"), (0, "float32")])
def test_on_a_cluster_it_is_the_workers_node_that_says_what_they_compute_in(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_gpus: int, dtype: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": num_gpus})
    monkeypatch.setattr(ray, "nodes", list)
    automatic = settings(model, tmp_path, "rollout.dtype=auto")
    assert deployed_on_ray(automatic).engine_dtype == dtype
    fixed = settings(model, tmp_path, "rollout.dtype=float32")
    assert deployed_on_ray(fixed).engine_dtype == "float32"


def test_its_copies_are_counted(model: Path, tmp_path: Path) -> None:
    whole, changed = (
        MemoryNeeds(run.model, run.algorithm, run.learner, run.rollout, 10**6).least()
        for push in ("whole", "changed")
        for run in [settings(model, tmp_path, f"learner.push={push}", "rollout.num_workers=3")]
    )
    assert sum(changed.values()) - sum(whole.values()) == (1 + 3) * 4e6


@pytest.fixture(scope="module")
def _ray() -> Iterator[None]:
    with cluster():
        yield


def versions(fleet: Fleet, start: int) -> set[int]:
    """Versions of the weights with which the living workers write."""
    sampling = Sampling(max_tokens=6)
    leases = [Lease(start + i, Prompt(f"p{i}", "a"), (4 + i, 5), i, i, sampling) for i in range(8)]
    received: list[Rollout] = []
    deadline = time.monotonic() + PATIENCE_S
    for rollouts in fleet.generate(leases):
        received += rollouts
        assert time.monotonic() < deadline
    return {version for one in received for version in one.turns[0].weight_versions}


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.usefixtures("_ray")
def test_a_late_joiner_and_who_replaces_a_lost_worker_get_the_whole(model: Path, tmp_path: Path) -> None:
    """From the learner's own copy; where the learner is gone, that is said, and another begins anew."""
    chosen = settings(model, tmp_path, "learner.push=changed")
    notes: list[str] = []
    deployed = deployed_on_ray(chosen)
    learner = launch.start_learner(chosen, deployed, notes.append)
    fleet = launch.start_fleet(
        launch.model_of(chosen.model, chosen.algorithm, chosen.environment), deployed, notes.append
    )
    try:
        learner.wait_until_ready()
        fleet.wait_until_ready()
        texts = [tuple(4 + (3 * i + k) % 9 for k in range(7)) for i in range(8)]

        def push() -> Any:
            published = learner.publish()
            fleet.load_weights(published)
            return published.manifest, ray.get(published.arrays)

        first, _ = push()
        learner.update(random_rollouts(6), lambda *_: None)
        second, sent = push()
        assert first.base is None and second.base == first.push
        assert any(isinstance(array, ChangedElements) for array in sent.values())
        expected = fleet.logprobs(texts)

        os.kill(fleet.pids["worker 0"], signal.SIGKILL)
        fleet.scale(2)
        assert fleet.logprobs(texts) == expected and versions(fleet, 100) == {1}
        fleet.wait_until_ready()
        assert set(fleet.pids) == {"worker 1", "worker 2"}
        assert fleet.logprobs(texts) == expected and versions(fleet, 200) == {1}

        learner.update(random_rollouts(6, seed=1), lambda *_: None)
        third, _ = push()
        assert third.base == second.push and set(fleet.pids) == {"worker 1", "worker 2"}
        changed = fleet.logprobs(texts)
        assert changed != expected and versions(fleet, 300) == {2}

        folder, deadline = tmp_path / "checkpoint", time.monotonic() + PATIENCE_S
        folder.mkdir()
        learner.save(str(folder))
        learner.stop()
        os.kill(fleet.pids["worker 1"], signal.SIGKILL)
        with pytest.raises(LearnerLost, match="all of the published weights"):
            while deadline > time.monotonic():
                versions(fleet, 400)
        fleet.cancel_all()
        learner.restart()
        learner.load(str(folder))
        fourth, _ = push()
        assert fourth.base is None and fourth.version == third.version
        fleet.wait_until_ready()
        assert fleet.logprobs(texts) == changed and versions(fleet, 500) == {2}
    finally:
        fleet.stop()
        learner.stop()
