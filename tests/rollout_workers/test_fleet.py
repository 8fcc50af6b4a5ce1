"""The fleet on real Ray actors: nothing is lost and nothing comes twice, whoever dies or falls silent."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from contracts.clients import PublishedWeights
from contracts.errors import DeadlineExceeded, WorkerError
from contracts.processes.waiting import Waiting
from contracts.rollout import Lease, Prompt, Rollout, Sampling
from contracts.weights import Probe, WeightManifest
from learner.publishing.weight_publisher import publish
from rollout_workers.engines import ENGINES
from rollout_workers.engines.base import Generation, Request
from rollout_workers.fleet.fleet import Fleet
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker
from tests.rollout_workers.generation import load_lm, perturb, worst_difference

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]

PATIENCE_S = 120.0
MakeFleet = Callable[..., Fleet]


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def make_fleet(notes: list[str]) -> Iterator[MakeFleet]:
    """A fleet of workers with the given engine, ready; its notes go to `notes`."""
    with contextlib.ExitStack() as stack:

        def make(
            engine: str = "CountingEngine",
            model: str = "none",
            worker: type[RolloutWorker] = RolloutWorker,
            ready: bool = True,
            later: str | None = None,  # the engine of those that are not there from the start
            then: str | None = None,  # … but for the first of them
            **options: Any,
        ) -> Fleet:
            settings = RolloutSettings(**({"num_workers": 2, "dtype": "float32"} | options))
            engines = chain(
                [engine] * settings.num_workers, [later or engine], repeat(then or later or engine)
            )
            actor = ray.remote(worker).options(
                num_cpus=0, max_concurrency=6, runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}}
            )

            def make_worker(is_extra: bool) -> Any:
                kind = next(engines)
                address = kind if kind in ENGINES else f"tests.rollout_workers.engines:{kind}"
                return actor.remote(model, model, None, address, settings)

            fleet = Fleet(make_worker, settings, notes.append, tell=print)
            stack.callback(fleet.stop)
            if ready:
                fleet.wait_until_ready()
            return fleet

        yield make


def leases(count: int, num_tokens: int = 5, start: int = 0) -> list[Lease]:
    sampling = Sampling(max_tokens=num_tokens, min_tokens=num_tokens)
    return [
        Lease(id, Prompt(f"p/{id}", "a b"), (4 + id % 10, 5), group=id, seed=id, sampling=sampling)
        for id in range(start, start + count)
    ]


def weights(version: int) -> PublishedWeights:
    return PublishedWeights(WeightManifest(version, {}, 0, Probe((1, 2), (-0.5,), 1e-3)), {})


def lose_patience_with_those_that_start(fleet: Fleet) -> None:
    """From now on; those of the beginning have had all the time that a busy machine takes."""
    pool = fleet._pool
    pool._settings = pool._settings.model_copy(update={"start_timeout_s": 1.0})


def gather(rounds: Iterator[list[Rollout]]) -> list[Rollout]:
    finished: list[Rollout] = []
    deadline = time.monotonic() + PATIENCE_S
    for rollouts in rounds:
        finished += rollouts
        assert time.monotonic() < deadline, f"only {len(finished)} rollouts after {PATIENCE_S:.0f} s"
    return finished


def ids(rollouts: list[Rollout]) -> list[int]:
    return sorted(rollout.lease_id for rollout in rollouts)


class SlowToAnswer(RolloutWorker):
    """Has the leases at once, but is slow to say so."""

    def submit(self, leases: Sequence[Lease]) -> None:
        super().submit(leases)
        time.sleep(0.4)


@pytest.mark.parametrize("deterministic", [False, True])
def test_every_lease_comes_back_once_and_both_workers_work(
    make_fleet: MakeFleet, deterministic: bool
) -> None:
    fleet = make_fleet(max_concurrent=4, deterministic=deterministic)  # 4 at a time: slots are refilled
    fleet.load_weights(weights(3))

    assert len(set(fleet.pids.values())) == 2
    for start in (0, 60):
        rollouts = gather(fleet.generate(leases(60, start=start)))
        assert ids(rollouts) == list(range(start, start + 60))
        assert {version for rollout in rollouts for version in rollout.turns[0].weight_versions} == {3}


def test_leases_wait_while_a_worker_still_owes_an_answer(make_fleet: MakeFleet, notes: list[str]) -> None:
    fleet = make_fleet(worker=SlowToAnswer, num_workers=1, max_concurrent=2, stall_timeout_s=10.0)
    queue = [lease for n in range(6) for lease in leases(1, num_tokens=1 + 4 * n, start=n)]

    assert ids(gather(fleet.generate(queue))) == list(range(6))
    assert not notes


def test_a_killed_worker_is_replaced_and_its_leases_are_given_out_again(
    make_fleet: MakeFleet, notes: list[str], models: dict[str, Path]
) -> None:
    """With a real model: the replacement must have the learner's weights, not those of the model's folder."""
    fleet = make_fleet("transformers", str(models["llama"]))
    lm = load_lm(models["llama"])
    perturb(lm, seed=1)
    manifest, arrays = publish(lm, 9, "float32")
    fleet.load_weights(PublishedWeights(manifest, ray.put(arrays)))
    before = dict(fleet.pids)

    queue = leases(24, num_tokens=120)
    rounds = fleet.generate(queue)
    next(rounds)
    os.kill(before["worker 0"], signal.SIGKILL)
    rollouts = gather(rounds)
    fleet.wait_until_ready()
    after = gather(fleet.generate(leases(24, start=100)))

    assert ids(rollouts) == list(range(24)) and ids(after) == list(range(100, 124))
    assert "worker 0" not in fleet.pids and set(fleet.pids) == {"worker 1", "worker 2"}
    assert any("worker 0 died" in note and "leased again" in note for note in notes)
    assert any(f"worker 2 (process {fleet.pids['worker 2']}) is up" in note for note in notes)
    for rollout in rollouts + after:
        (turn,) = rollout.turns
        assert set(turn.weight_versions) == {9}
    # By these weights, whichever worker wrote them. min_tokens took the end token out of what was drawn from.
    assert all(len(rollout.turns[0].tokens) == 120 for rollout in rollouts)
    free = [Lease(200 + i, Prompt("p", "a"), (4, 5 + i), i, i, Sampling(max_tokens=10)) for i in range(8)]
    last = {r.lease_id: r for r in gather(fleet.generate(free))}
    requests = [Request(lease.id, lease.tokens, lease.sampling, lease.seed) for lease in free]
    assert worst_difference(lm, requests, {id: generation(rollout) for id, rollout in last.items()}) < 1e-4


def generation(rollout: Rollout) -> Generation:
    (turn,) = rollout.turns
    logprobs, versions = turn.behavior_logprobs, turn.weight_versions
    return Generation(rollout.lease_id, turn.tokens, turn.text, logprobs, versions, rollout.finish_reason)


def test_a_silent_worker_is_ended_and_replaced(make_fleet: MakeFleet, notes: list[str]) -> None:
    fleet = make_fleet(stall_timeout_s=5.0)
    fleet.load_weights(weights(2))
    pid = fleet.pids["worker 1"]
    rounds = fleet.generate(leases(20, num_tokens=50))
    next(rounds)
    os.kill(pid, signal.SIGSTOP)

    rollouts = gather(rounds)

    assert ids(rollouts) == list(range(20))
    assert any("worker 1 made no token for" in note for note in notes)
    fleet.wait_until_ready()
    assert set(fleet.pids) == {"worker 0", "worker 2"}
    assert {v for r in gather(fleet.generate(leases(8, start=50))) for v in r.turns[0].weight_versions} == {2}


def test_a_worker_that_falls_silent_between_iterations_does_not_hold_up_the_weights(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    fleet = make_fleet(stall_timeout_s=5.0)
    os.kill(fleet.pids["worker 0"], signal.SIGSTOP)

    fleet.load_weights(weights(1))

    assert any("worker 0 did not answer within 5 s (weights of version 1)" in note for note in notes)
    fleet.wait_until_ready()
    rollouts = gather(fleet.generate(leases(10)))
    assert ids(rollouts) == list(range(10))
    assert {v for rollout in rollouts for v in rollout.turns[0].weight_versions} == {1}


def test_an_engine_that_fails_while_generating_is_replaced_up_to_the_limit(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    fleet = make_fleet("FailsOnStep", num_workers=1, max_restarts=2)

    with pytest.raises(
        WorkerError, match=r"out of memory, say; that is loss 3 within an hour, and rollout.max_restarts=2"
    ):
        gather(fleet.generate(leases(3)))
    lost = [note for note in notes if "3 prompts are leased again" in note]
    assert ["starts in 1 s" in lost[0], "starts in 2 s" in lost[1]] == [True, True] and len(lost) == 2
    assert fleet.num_quarantined == 3


def test_weights_that_arrive_wrong_take_a_worker_out(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("AlwaysWrong", num_workers=1, max_restarts=0)

    with pytest.raises(WorkerError, match=r"version 4 arrived wrong"):
        fleet.load_weights(weights(4))


def test_workers_that_are_killed_while_they_start_are_replaced(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    """All of them, before anybody is up."""
    fleet = make_fleet("DiesAtStart", later="CountingEngine")

    assert set(fleet.pids) == {"worker 2", "worker 3"}
    assert fleet.num_quarantined == 2
    assert "worker 0 did not start: died (ActorDiedError)" in " ".join(notes)
    assert ids(gather(fleet.generate(leases(8)))) == list(range(8))


def test_where_one_after_the_other_dies_as_it_starts_the_run_ends(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    fleet = make_fleet("DiesAtStart", num_workers=1, ready=False)

    with pytest.raises(WorkerError, match=r"worker 2 died \(\w+\) at its start, like 2 before it\. .*memory"):
        fleet.wait_until_ready()
    assert len(notes) == 2


def test_an_engine_that_raises_after_another_was_killed_still_ends_the_run_at_once(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    fleet = make_fleet("DiesAtStart", num_workers=1, later="FailsToStart", ready=False)

    with pytest.raises(WorkerError, match="worker 1: the engine did not start: no such kernel"):
        fleet.wait_until_ready()
    assert len(notes) == 1


def test_workers_that_are_killed_while_they_load_weights_are_replaced(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    fleet = make_fleet("DiesOnLoad", later="DiesOnLoad", then="CountingEngine")
    fleet.load_weights(weights(3))
    fleet.wait_until_ready()

    assert fleet.num_quarantined == 3  # the two of the beginning, and one that was catching up
    rollouts = gather(fleet.generate(leases(8)))
    assert ids(rollouts) == list(range(8))
    assert {v for rollout in rollouts for v in rollout.turns[0].weight_versions} == {3}


def test_one_that_is_added_and_killed_while_it_starts_is_replaced(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    fleet = make_fleet(num_workers=1, later="DiesAtStart", then="CountingEngine")
    fleet.scale(2)
    fleet.wait_until_ready()

    assert set(fleet.pids) == {"worker 0", "worker 2"} and fleet.num_workers == 2


def test_a_wait_for_nobody_is_not_told(notes: list[str]) -> None:
    """An awaited worker may come while the line is due."""
    waiting = Waiting(notes.append, every_s=0.0)
    waiting.tell("the workers", [])
    assert notes == []
    waiting.tell("the workers", ["worker 0 has been starting for 3 s", "worker 1 has been starting for 2 s"])
    assert notes == [
        "waiting 0 s for the workers: worker 0 has been starting for 3 s; worker 1 has been starting for 2 s"
    ]


def test_an_engine_that_never_starts_is_not_tried_again(make_fleet: MakeFleet, notes: list[str]) -> None:
    fleet = make_fleet("FailsToStart", ready=False)

    with pytest.raises(WorkerError, match=r"worker \d: the engine did not start: no such kernel"):
        fleet.wait_until_ready()
    assert not notes


def test_a_start_that_takes_too_long_says_so(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("NeverUp", ready=False, start_timeout_s=0.5)

    with pytest.raises(DeadlineExceeded, match=r"worker \d to start; raise rollout.start_timeout_s"):
        fleet.wait_until_ready()


def test_a_lost_worker_that_finds_no_place_again_does_not_end_the_others(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    fleet = make_fleet(later="NeverUp", max_restarts=1)
    lose_patience_with_those_that_start(fleet)
    os.kill(fleet.pids["worker 0"], signal.SIGKILL)

    deadline = time.monotonic() + PATIENCE_S
    while not any("to start; raise rollout.start_timeout_s" in note for note in notes):
        assert len(gather(fleet.generate(leases(4, num_tokens=2)))) == 4
        assert time.monotonic() < deadline

    assert fleet.num_up == 1 and fleet.num_quarantined == 1


def test_with_nobody_up_one_that_does_not_start_is_a_loss_like_others(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    fleet = make_fleet(later="NeverUp", num_workers=1, max_restarts=1)
    lose_patience_with_those_that_start(fleet)
    os.kill(fleet.pids["worker 0"], signal.SIGKILL)

    with pytest.raises(WorkerError, match=r"worker 1 did not start: waited 1 s .*; that is loss 2 within"):
        gather(fleet.generate(leases(4)))
    assert any("loss 1 within an hour, of 1; another one starts in 1 s" in note for note in notes)


def test_cancelled_leases_do_not_come_back(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    next(fleet.generate(leases(10, num_tokens=300)))
    fleet.cancel_all()

    started = time.monotonic()
    rollouts = gather(fleet.generate(leases(4, num_tokens=2, start=50)))

    assert ids(rollouts) == [50, 51, 52, 53]
    assert time.monotonic() - started < PATIENCE_S / 2


def test_what_was_answered_before_it_was_cancelled_is_not_taken_for_a_lease_of_the_same_id(
    make_fleet: MakeFleet,
) -> None:
    """As after a lost learner: the same leases go out again, and other weights are to write them."""
    fleet = make_fleet(num_workers=1)
    fleet.load_weights(weights(6))
    fleet.submit(leases(1, num_tokens=20))
    assert fleet.collect() == []  # the lease is out, and a poll under way
    time.sleep(1.0)  # its answer has the rollout, and is not fetched
    fleet.cancel_all()
    fleet.load_weights(weights(4))
    fleet.submit(leases(1, num_tokens=1))

    rollouts: list[Rollout] = []
    while not rollouts:
        rollouts = fleet.collect()
    assert rollouts[0].turns[0].weight_versions == (4,)
    time.sleep(0.5)
    assert fleet.collect() == []


def test_texts_are_scored_in_order_though_a_worker_is_gone(make_fleet: MakeFleet, notes: list[str]) -> None:
    fleet = make_fleet()
    texts = [(7, number, 2 * number) for number in range(300)]  # more than one call to each worker
    os.kill(next(iter(fleet.pids.values())), signal.SIGKILL)

    assert fleet.logprobs(texts) == [(-number / 4, -number / 2) for number in range(300)]
    assert any("died" in note for note in notes)


@pytest.mark.long
def test_a_driver_that_looks_rarely_notices_who_hangs_and_forgives_who_works(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    fleet = make_fleet(stall_timeout_s=6.0)
    fleet.submit(leases(2, num_tokens=2000))
    fleet.collect()
    time.sleep(7.0)  # away for longer than the deadline
    fleet.collect()
    assert notes == []
    os.kill(fleet.pids["worker 1"], signal.SIGSTOP)

    deadline = time.monotonic() + PATIENCE_S
    while not notes:
        time.sleep(2.5)
        fleet.collect()
        assert time.monotonic() < deadline
    assert "worker 1 made no token for" in notes[0] and "does not answer" in notes[0]
    assert fleet.num_quarantined == 1


def test_workers_that_are_added_have_the_current_weights_before_they_write(
    make_fleet: MakeFleet, models: dict[str, Path]
) -> None:
    fleet = make_fleet("transformers", str(models["llama"]), num_workers=1)
    lm = load_lm(models["llama"])
    perturb(lm, seed=1)
    manifest, arrays = publish(lm, 9, "float32")
    fleet.load_weights(PublishedWeights(manifest, ray.put(arrays)))

    free = [
        Lease(i, Prompt("p", "a"), (4 + i % 8, 5 + i // 8), i, i, Sampling(max_tokens=10)) for i in range(24)
    ]
    rounds = fleet.generate(free[:12])
    rollouts = next(rounds)
    fleet.scale(2)
    rollouts += gather(rounds)
    fleet.wait_until_ready()
    rollouts += gather(fleet.generate(free[12:]))

    assert ids(rollouts) == list(range(24)) and fleet.num_leased_again == 0
    assert fleet.num_up == fleet.num_workers == len(set(fleet.pids.values())) == 2
    assert {v for rollout in rollouts for v in rollout.turns[0].weight_versions} == {9}
    requests = [Request(lease.id, lease.tokens, lease.sampling, lease.seed) for lease in free]
    written = {rollout.lease_id: generation(rollout) for rollout in rollouts}
    assert worst_difference(lm, requests, written) < 1e-4


def test_those_that_leave_end_what_they_have_begun_and_may_come_back_before(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    fleet = make_fleet()
    before = dict(fleet.pids)
    rounds = fleet.generate(leases(20, num_tokens=100))
    next(rounds)
    fleet.scale(1)
    fleet.scale(2)
    assert fleet.num_up == 2
    fleet.scale(1)
    assert fleet.num_up == 1 and fleet.pids == before
    rollouts = gather(rounds) + gather(fleet.generate(leases(5, start=50)))

    assert ids(rollouts) == [*range(20), *range(50, 55)]
    assert fleet.num_leased_again == fleet.num_quarantined == 0
    assert len(fleet.pids) == 1 and any("has left" in note for note in notes)
    (left,) = set(before.values()) - set(fleet.pids.values())
    deadline = time.monotonic() + PATIENCE_S
    while psutil.pid_exists(left):
        fleet.collect()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_one_that_dies_while_it_leaves_is_not_replaced_and_its_leases_are_given_out_again(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    fleet = make_fleet()
    rounds = fleet.generate(leases(20, num_tokens=300))
    next(rounds)
    fleet.scale(1)
    (leaving,) = [worker for worker in fleet._pool._live.values() if worker.is_leaving]
    os.kill(leaving.pid, signal.SIGKILL)

    assert ids(gather(rounds)) == list(range(20))
    assert fleet.num_quarantined == 0 and fleet.num_leased_again == 10 and len(fleet.pids) == 1
    assert any("it was leaving; 10 prompts are leased again" in note for note in notes)


def test_one_that_is_added_and_can_not_start_costs_nothing(make_fleet: MakeFleet, notes: list[str]) -> None:
    fleet = make_fleet(num_workers=1, max_restarts=0, later="FailsToStart")
    fleet.scale(2)
    fleet.wait_until_ready()

    assert fleet.num_workers == fleet.num_up == 1 and fleet.num_quarantined == 0
    assert any("no such kernel; 1 workers remain" in note for note in notes)
    assert ids(gather(fleet.generate(leases(4)))) == [0, 1, 2, 3]


def test_nobody_waits_for_a_late_joiner_that_hangs_while_it_catches_up(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    fleet = make_fleet(num_workers=1, stall_timeout_s=8.0, later="HangsOnLoad")
    fleet.load_weights(weights(2))
    fleet.scale(2)
    deadline = time.monotonic() + PATIENCE_S
    number = 0
    while not notes:
        assert ids(gather(fleet.generate(leases(1, start=number)))) == [number]
        number += 1
        assert time.monotonic() < deadline
    assert "for the weights of worker 1 to arrive" in notes[0] and number > 1


def test_weights_that_come_while_one_catches_up_with_earlier_ones_are_loaded_too(
    make_fleet: MakeFleet,
) -> None:
    fleet = make_fleet(num_workers=1, later="SlowToLoad")
    fleet.load_weights(weights(1))
    fleet.scale(2)
    (starting,) = fleet._pool._starting
    while starting.loads is None:
        fleet.collect()
    fleet.load_weights(weights(2))
    fleet.wait_until_ready()
    rollouts = gather(fleet.generate(leases(20, num_tokens=20)))

    assert {v for rollout in rollouts for v in rollout.turns[0].weight_versions} == {2}


def test_those_who_are_slow_to_sleep_are_waited_for_and_wake_by_themselves(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    fleet = make_fleet("SlowToSleep", stall_timeout_s=20.0)
    before = dict(fleet.pids)
    for version in (1, 2):
        fleet.load_weights(weights(version))
        assert ids(gather(fleet.generate(leases(6)))) == list(range(6))
        started = time.monotonic()
        fleet.sleep()
        assert time.monotonic() - started >= 2.0
    assert fleet.logprobs([(7, 4)]) == [(-1.0,)]
    assert fleet.pids == before and not notes


def test_one_that_hangs_instead_of_sleeping_is_replaced_by_one_that_sleeps(
    make_fleet: MakeFleet, notes: list[str]
) -> None:
    fleet = make_fleet("HangsOnSleep", num_workers=1, stall_timeout_s=4.0, later="CountingEngine")
    fleet.sleep()

    assert "worker 0 did not answer within 4 s (its engine to sleep)" in notes[0]
    assert set(fleet.pids) == {"worker 1"}
    assert ids(gather(fleet.generate(leases(3)))) == [0, 1, 2]


@pytest.mark.long
@pytest.mark.vllm
def test_a_fleet_of_vllm_sleeps_and_wakes_as_if_it_had_not(
    make_fleet: MakeFleet, notes: list[str], models: dict[str, Path]
) -> None:
    fleet = make_fleet("vllm", str(models["llama"]), num_workers=1, kv_cache_gib=0.1, sleep=True)
    greedy = [
        Lease(i, Prompt("p", "a"), (4, 5 + i), i, i, Sampling(max_tokens=10, temperature=0.0))
        for i in range(8)
    ]
    lm = load_lm(models["llama"])
    for version in range(3):
        perturb(lm, seed=version)
        manifest, arrays = publish(lm, version, "float32")
        published = PublishedWeights(manifest, ray.put(arrays))
        fleet.load_weights(published)
        awake = {rollout.lease_id: rollout.turns[0] for rollout in gather(fleet.generate(greedy))}
        scores = fleet.logprobs([manifest.probe.tokens])
        fleet.sleep()
        assert fleet.logprobs([manifest.probe.tokens]) == [pytest.approx(scores[0], abs=1e-6)]
        fleet.sleep()
        slept = {rollout.lease_id: rollout.turns[0] for rollout in gather(fleet.generate(greedy))}
        for id, turn in awake.items():
            assert (slept[id].tokens, slept[id].weight_versions) == (turn.tokens, turn.weight_versions)
            assert slept[id].behavior_logprobs == pytest.approx(turn.behavior_logprobs, abs=1e-5)
        fleet.sleep()  # the next version's push wakes it
    assert not notes
