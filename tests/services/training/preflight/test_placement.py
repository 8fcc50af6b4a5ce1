"""Reservations of processes, demands without room, and workers' places in a real placement group."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from contracts.errors import DeadlineExceeded, InputError
from contracts.settings import build
from rollout_workers.worker import WorkerReport
from services.config.compose import run_settings
from services.config.settings import RunSettings
from services.training.preflight.deployment import Deployment, Machine, deployment
from services.training.preflight.placement import Placement, Reservation, check_room, fits, placement


def settings(
    num_workers: int = 1, num_processes: int = 1, start_timeout_s: float = 1.0, **cluster: Any
) -> RunSettings:
    whole = {
        "algorithm": "ppo",
        "task": "increasing_numbers",
        "model": {"path": "some/model"},
        "rollout": {"num_workers": num_workers, "start_timeout_s": start_timeout_s},
        "learner": {"num_processes": num_processes},
        "cluster": cluster,
    }
    return build(RunSettings, whole, where="")


def placed_on(run: RunSettings, num_gpus: int) -> Placement:
    return placement(run.rollout, run.cluster, run.learner.num_processes, num_gpus)


def deployed_on(run: RunSettings, num_gpus: int) -> Deployment:
    machine = Machine(2.0, num_gpus)
    learners = run.learner.num_processes
    return deployment(run.rollout, run.cluster, learners, machine, is_encoder_decoder=False)


def check(run: RunSettings, num_gpus: int, num_cpus: float) -> None:
    check_room(run.rollout, run.cluster, run.learner, num_gpus, num_cpus)


@pytest.mark.parametrize(
    ("num_workers", "num_gpus", "share"),
    [(1, 0, 0.0), (1, 1, 0.5), (1, 2, 1.0), (3, 1, 0.25), (2, 2, 0.5), (3, 8, 1.0), (4, 2, 1 / 3)],
)
def test_what_is_left_open_is_shared_out_so_that_all_find_a_place(
    num_workers: int, num_gpus: int, share: float
) -> None:
    placed = placed_on(settings(num_workers), num_gpus)
    assert placed.learner.num_gpus == placed.worker.num_gpus == pytest.approx(share)
    assert fits(placed, num_gpus, num_cpus=1)


def test_what_is_asked_for_is_taken() -> None:
    run = settings(3, 2, learner_gpus=1, worker_gpus=0.5, learner_cpus=2, worker_cpus=1)
    placed = placed_on(run, 0)
    assert (placed.num_gpus, placed.num_cpus) == (2 * 1 + 3 * 0.5, 2 * 2 + 3 * 1)
    assert placed.worker.resources == {"CPU": 1.0, "GPU": 0.5}


@pytest.mark.parametrize(
    ("learner", "worker", "num_workers", "num_gpus", "expected"),
    [
        (0.5, 0.5, 1, 1, True),
        (0.5, 0.5, 2, 1, False),
        (0.6, 0.6, 1, 1, False),  # of two shares neither lies on two GPUs
        (0.6, 0.6, 1, 2, True),
        (0.6, 0.3, 2, 2, True),
        (1.0, 0.5, 2, 2, True),
        (1.0, 0.5, 3, 2, False),
        (2.0, 1.0, 2, 4, True),
        (2.0, 1.0, 3, 4, False),
        (0.5, 0.1, 15, 2, True),
        (0.5, 0.1, 16, 2, False),
        (0.0, 1e-12, 10**12, 1, True),
        (0.0, 0.0, 10**12, 0, True),
        (1.0, 1.0, 10**12, 8, False),
    ],
)
def test_shares_lie_on_single_gpus(
    learner: float, worker: float, num_workers: int, num_gpus: int, expected: bool
) -> None:
    placed = Placement(Reservation(num_gpus=learner), Reservation(num_gpus=worker), num_workers)
    assert fits(placed, num_gpus, num_cpus=1) is expected


@pytest.mark.parametrize(
    ("rewards", "num_gpus", "shares", "fit"),
    [
        (((1.0, 2),), 4, (1.0, 1.0), True),  # two GPUs are left
        (((1.0, 3),), 4, (0.5, 0.5), True),
        (((1.0, 4),), 4, (1.0, 1.0), False),
        (((0.25, 1),), 1, (0.375, 0.375), True),
        (((0.5, 3),), 4, (1.0, 1.0), True),
    ],
)
def test_gpus_of_rewards_are_not_shared_out(
    rewards: Any, num_gpus: int, shares: tuple[float, float], fit: bool
) -> None:
    run = settings()
    placed = placement(run.rollout, run.cluster, 1, num_gpus, rewards)
    assert (placed.learner.num_gpus, placed.worker.num_gpus) == shares
    assert fits(placed, num_gpus, num_cpus=1) is fit


def test_what_rewards_reserve_is_in_the_run_and_in_the_refusal() -> None:
    whole = {"algorithm": "ppo", "task": "increasing_numbers", "model": {"path": "m"}, "metrics": ["rouge"]}
    servers = {"rouge": {"num_gpus": 1, "max_replicas": 2}}
    run = build(RunSettings, {**whole, "reward_servers": servers}, where="")
    assert run.reserved_gpus == ((1.0, 2),)
    with pytest.raises(InputError, match="and rewards and metrics 2 GPUs"):
        check_room(run.rollout, run.cluster, run.learner, 2, 1, run.reserved_gpus)


def split(size: int, *, algorithm: Any = "ppo", model: Any = None, **groups: Any) -> RunSettings:
    """A run whose workers' engines are split over so many GPUs."""
    rollout = {"tensor_parallel_size": size, "num_workers": 2} | groups.pop("rollout", {})
    whole = {"algorithm": algorithm, "task": "increasing_numbers", "model": {"path": "m"} | (model or {})}
    return build(RunSettings, {**whole, "rollout": rollout, **groups}, where="")


@pytest.mark.parametrize(("num_gpus", "expected"), [(0, (0, 0, True)), (4, (1, 2, False)), (5, (1, 2, True))])
def test_an_engine_over_several_gpus_takes_whole_ones(num_gpus: int, expected: tuple[int, int, bool]) -> None:
    placed = placed_on(split(2), num_gpus)
    assert (placed.learner.num_gpus, placed.worker.num_gpus, fits(placed, num_gpus, 1)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rollout": {"engine": "transformers"}}, "=2: rollout.engine=transformers can't split models"),
        ({"algorithm": "nlpo"}, "algorithm=nlpo's mask needs one GPU; expected 1"),
        ({"model": {"adapter": {"kind": "lora", "serve": "adapter"}}}, "expected model.adapter.serve=merged"),
        ({"cluster": {"learner_gpus": 1, "worker_gpus": 1}}, r"got cluster\.worker_gpus=1; expected 2"),
    ],
)
def test_what_an_engine_over_several_gpus_can_not_do(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        split(2, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learner_gpus": 1}, "give both, or neither"),
        ({"learner_gpus": 1.5, "worker_gpus": 1}, "a share of a GPU, such as 0.5, or a whole number"),
        ({"strategy": "spread"}, "places what workers reserve, and they reserve nothing"),
        ({"strategy": "apart"}, "Input should be 'none', 'pack', 'spread' or 'strict_spread'"),
    ],
)
def test_reservations_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings(**options)


def test_one_machine_says_what_it_lacks() -> None:
    with pytest.raises(InputError, match=r"the learner reserves 1 GPU and 0 CPUs.*this machine has 0 GPUs"):
        check(settings(2, learner_gpus=1, worker_gpus=1), num_gpus=0, num_cpus=2)
    with pytest.raises(InputError, match=r"num_processes=2 reserves 0 GPUs and 2 CPUs.*0 GPUs and 3 CPUs"):
        check(settings(1, 2, learner_cpus=2), num_gpus=0, num_cpus=3)
    with pytest.raises(InputError, match="2 workers on as many nodes, but this is one machine"):
        check(settings(2, worker_cpus=1, strategy="strict_spread"), num_gpus=0, num_cpus=8)
    check(settings(2, worker_cpus=1, strategy="spread"), num_gpus=0, num_cpus=2)


def test_a_gpu_that_is_asked_for_by_name_is_there() -> None:
    whole = {"algorithm": "ppo", "task": "increasing_numbers", "model": {"path": "m"}}
    run = build(RunSettings, {**whole, "learner": {"device": "cuda"}}, where="")
    with pytest.raises(InputError, match=r"^learner\.device=cuda: this machine has no GPU"):
        check(run, num_gpus=0, num_cpus=2)
    none = {**whole, "learner": {"device": "cuda"}, "cluster": {"learner_gpus": 0, "worker_gpus": 1}}
    with pytest.raises(InputError, match="a process sees only GPUs that it reserves"):
        check(build(RunSettings, none, where=""), num_gpus=1, num_cpus=2)


@pytest.mark.parametrize(
    ("name", "num_gpus", "strategy"),
    [("laptop", 0, "none"), ("one_gpu", 1, "none"), ("disaggregated", 4, "pack"), ("nodes", 5, "spread")],
)
def test_each_preset_fits_what_it_is_for_and_nothing_less(name: str, num_gpus: int, strategy: str) -> None:
    run = run_settings([f"cluster={name}", "model.path=some/model"])
    assert run.cluster.strategy == strategy
    check(run, num_gpus, num_cpus=1)
    if num_gpus:
        assert placed_on(run, num_gpus).num_gpus == num_gpus
        with pytest.raises(InputError, match="Expected less of cluster"):
            check(run, num_gpus - 1, num_cpus=1)


# On Ray


class Place:
    """Where a worker would be."""

    def __init__(self, *_: Any) -> None:
        pass

    def ready(self) -> int:
        return os.getpid()

    def poll(self, wait_s: float) -> WorkerReport:
        time.sleep(wait_s)
        return WorkerReport((), 0, 0, 0)

    def close(self) -> None:
        pass

    def ping(self) -> str:
        return "pong"

    def apply(self, func: Any, **arguments: Any) -> Any:
        return func(self, **arguments)

    def gpus(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def group(self) -> str | None:
        from ray.util import get_current_placement_group

        placement_group = get_current_placement_group()
        return None if placement_group is None else placement_group.id.hex()


@pytest.mark.ray
def test_a_process_that_reserves_no_gpu_sees_none(node: None) -> None:
    """The node has two, and each is visible to the process that reserves it."""
    import ray

    from services.training.train.launch import _options

    def seen(num_gpus: float) -> str | None:
        actor = ray.remote(Place).options(**_options(Reservation(0.0, num_gpus), 1)).remote()
        try:
            visible_gpus: str | None = ray.get(actor.gpus.remote())
            return visible_gpus
        finally:
            ray.kill(actor)

    assert seen(0.0) == ""
    assert seen(1.0) in ("0", "1")


@pytest.fixture(scope="module")
def node() -> Iterator[None]:
    """One node with two processors and two GPUs, which nobody looks for."""
    import ray

    ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.ray
def test_workers_take_their_places_together_and_a_replacement_finds_one(node: None) -> None:
    import ray

    from services.training.train.places import places_together

    run = settings(2, learner_gpus=1, worker_gpus=0.5, strategy="pack")
    notes: list[str] = []
    options = places_together(deployed_on(run, 2), notes.append)

    def start() -> Any:
        return ray.remote(Place).options(num_cpus=0, num_gpus=0.5, **options).remote()

    workers = [start(), start()]
    groups = ray.get([worker.group.remote() for worker in workers], timeout=120)
    assert groups[0] is not None and groups[0] == groups[1]
    ray.kill(workers[0])
    assert ray.get(start().group.remote(), timeout=120) == groups[0]
    assert notes == []


@pytest.mark.ray
def test_one_that_is_added_starts_beside_the_group_and_a_replacement_within(
    node: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has two places, and room for one more worker is beside it."""
    from services.training.train import launch

    monkeypatch.setattr(launch, "RolloutWorkerProcess", Place)
    notes: list[str] = []
    run = settings(2, start_timeout_s=60.0, learner_gpus=1, worker_gpus=0.25, strategy="spread")
    fleet = launch.start_fleet(launch.WorkerModel("none", "none"), deployed_on(run, 2), notes.append)
    try:
        fleet.wait_until_ready()
        first = places_of(fleet)
        fleet.scale(3)
        fleet.wait_until_ready()
        added = places_of(fleet)
        assert [group is not None for group in added.values()] == [True, True, False]
        assert {added[name] for name in first} == set(first.values())

        os.kill(fleet.pids["worker 0"], signal.SIGKILL)
        wait_for(fleet, {"worker 1", "worker 2", "worker 3"})
        assert places_of(fleet)["worker 3"] == first["worker 0"]

        fleet.scale(1)  # whichever stays: of two that come back, as many as there is room for are within
        wait_for(fleet, 1)
        fleet.scale(3)
        fleet.wait_until_ready()
        assert sorted(group is not None for group in places_of(fleet).values()) == [False, True, True]
    finally:
        fleet.stop()
    assert fleet.num_quarantined == 1, notes


def places_of(fleet: Any) -> dict[str, str | None]:
    """The placement group of each worker, by its name."""
    import ray

    handles, live = fleet._pool._calls.workers, fleet._pool._live
    actors = {worker.name: handles[id].actor for id, worker in live.items()}
    return {name: ray.get(actor.group.remote(), timeout=60) for name, actor in sorted(actors.items())}


def wait_for(fleet: Any, up: set[str] | int) -> None:
    deadline = time.monotonic() + 120
    while (set(fleet.pids) if isinstance(up, set) else len(fleet.pids)) != up:
        fleet.collect()
        time.sleep(0.1)
        assert time.monotonic() < deadline, fleet.pids


@pytest.mark.ray
def test_places_that_do_not_come_are_told_and_given_up(node: None) -> None:
    from services.training.train.places import places_together

    run = settings(2, worker_cpus=1, strategy="strict_spread")
    notes: list[str] = []
    with pytest.raises(
        DeadlineExceeded, match=r"waited 1 s \(rollout.start_timeout_s\) for cluster.strategy"
    ):
        places_together(deployed_on(run, 0), notes.append)
    (note,) = notes
    assert note.startswith("waiting for cluster.strategy=strict_spread: 2 places of {'CPU': 1.0}")
