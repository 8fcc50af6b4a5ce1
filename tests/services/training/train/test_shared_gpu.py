"""The order in which a run's parts start, their threads, and the places of a learner's ranks."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.gpu_plans import MACHINES, run_of
from benchmarks.qwen_shapes import files_of
from learner.distributed.rendezvous import Rendezvous
from services.training.preflight.capacity.gpu_defaults import fitted
from services.training.preflight.deployment import Deployment, Machine, deployment_of
from services.training.preflight.placement import Placement, Reservation
from services.training.train import launch


class Part:
    """Learner or fleet that notes what is asked of it."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name, self._notes = name, notes
        notes.append(f"{name} starts")

    def wait_until_ready(self) -> None:
        self._notes.append(f"{self._name} is up")

    def prepare(self) -> None: ...

    def stop(self) -> None: ...


LATER = ["learner starts", "learner is up", "fleet starts"]
BESIDE = ["learner starts", "fleet starts", "learner is up"]


@pytest.mark.parametrize(
    ("machine", "engine_args", "expected"),
    [
        (MACHINES["1×80 GB"], {}, BESIDE),
        (MACHINES["1×80 GB"], {"block_size": 32}, LATER),  # vLLM's memory is then not known
        (replace(MACHINES["1×80 GB"], gpu_bytes=None), {}, LATER),
        (MACHINES["8×80 GB"], {"block_size": 32}, BESIDE),
        (Machine(2.0, 0), {}, BESIDE),
    ],
)
def test_on_a_shared_gpu_workers_of_unknown_memory_start_when_the_learner_is_up(
    machine: Machine, engine_args: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM counts what others take while it measures as its own, and fails if they give memory back."""
    notes, facts, started = list[str](), list[str](), list[Deployment]()
    run = run_of(rollout={"engine": "vllm", "engine_args": engine_args})
    run, _ = fitted(run, files_of("0.5B"), machine)
    deployed = deployment_of(run, files_of("0.5B"), machine)

    def fleet(_: Any, chosen: Deployment, *__: Any) -> Part:
        started.append(chosen)
        return Part("fleet", notes)

    @contextlib.contextmanager
    def served(*_: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(launch, "model_of", lambda *_: None)
    monkeypatch.setattr(launch, "read_model", lambda *_: files_of("0.5B"))
    monkeypatch.setattr(launch, "ray_machine", lambda: machine)
    monkeypatch.setattr(launch, "deployment_of", lambda *_: deployed)
    monkeypatch.setattr(launch, "start_fleet", fleet)
    monkeypatch.setattr(launch, "start_learner", lambda *_: Part("learner", notes))
    monkeypatch.setattr(launch, "served_rewards", served)
    with launch.service(run, notes.append, facts.append, gpu_bytes=machine.gpu_bytes):
        assert notes[:3] == expected
    knows = bool(machine.gpu_bytes) and not engine_args
    assert bool(started[0].cache_bytes) == knows
    assert started[0].engine_settings.engine_args == engine_args  # an error of vLLM's names what a user wrote
    dtype = "bfloat16" if machine.num_gpus else "float32"
    assert f"rollouts are written by vLLM, {dtype}" in facts


def test_learner_and_workers_get_the_cores_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test lets this thread use one core, and looks only at the options with which parts would start."""
    run, num_threads = run_of(), list[int]()
    deployed = deployment_of(run, files_of("0.5B"), Machine(2.0, 0))

    def tell(reserved: Reservation, threads: int) -> None:
        num_threads.append(threads)
        raise InterruptedError

    monkeypatch.setattr(launch, "_options", tell)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with pytest.raises(InterruptedError):
            launch.start_fleet(launch.WorkerModel("none", "none"), deployed, print)
        with pytest.raises(InterruptedError):
            launch.start_learner(run, deployed, print)
    finally:
        os.sched_setaffinity(0, allowed)
    assert num_threads == [1, 1]


class Rank:
    def node(self) -> str:
        import ray

        node_id: str = ray.get_runtime_context().get_node_id()
        return node_id


@pytest.mark.long
@pytest.mark.ray
def test_ranks_are_one_gang_on_one_node_where_it_has_room() -> None:
    """The second of three nodes, with four GPUs, has room for all ranks; singly they would straddle."""
    import ray
    from ray.cluster_utils import Cluster

    from services.training.train.places import gang

    cluster = Cluster()
    try:
        for num_gpus in (2, 4, 2):
            cluster.add_node(num_cpus=1, num_gpus=num_gpus, include_dashboard=False)
        ray.init(cluster.address, log_to_driver=False)
        placed = Placement(Reservation(num_gpus=1), Reservation(num_gpus=1), num_workers=1, num_learners=4)
        place_of = gang(placed, 60.0, print)
        actors = [
            ray.remote(Rank).options(num_cpus=0, num_gpus=1, **place_of(Rendezvous(rank, 4, ""))).remote()
            for rank in range(4)
        ]
        nodes = ray.get([actor.node.remote() for actor in actors])
        assert len(set(nodes)) == 1
        ray.kill(actors[2])
        again = ray.remote(Rank).options(num_cpus=0, num_gpus=1, **place_of(Rendezvous(2, 4, ""))).remote()
        assert ray.get(again.node.remote()) == nodes[0]
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_learner_alone_or_without_reservations_needs_no_gang() -> None:
    from services.training.train.places import gang

    alone = Placement(Reservation(num_gpus=1), Reservation(), num_workers=1)
    unreserved = Placement(Reservation(), Reservation(), num_workers=1, num_learners=2)
    assert gang(alone, 1.0, print)(None) == gang(unreserved, 1.0, print)(None) == {}
