"""Broadcasts from a learner's process to workers': nothing is lost, whoever dies, hangs or is late."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import LearnerSilent
from contracts.rollout import Lease, Prompt, Sampling
from rollout_workers.fleet.fleet import Fleet
from tests.models import make_tiny_model
from tests.rollout_workers.broadcasting import ENGINES, parts, push, update
from tests.rollout_workers.receiving_engines import VICTIM, learner_that_stops

# Starts take minutes on a busy machine.
pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(900)]
TEXTS = [tuple(4 + (3 * i + k) % 9 for k in range(7)) for i in range(8)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


def group_of(fleet: Fleet) -> Any:
    return fleet._broadcasts._group


def check_every_lease_once(fleet: Fleet, version: int) -> None:
    leases = [Lease(i, Prompt(f"p{i}", "a"), (4 + i, 5), i, i, Sampling(max_tokens=6)) for i in range(8)]
    rollouts = [rollout for some in fleet.generate(leases) for rollout in some]
    assert sorted(one.lease_id for one in rollouts) == list(range(8))
    assert {v for one in rollouts for v in one.turns[0].weight_versions} == {version}


@pytest.mark.long
@pytest.mark.parametrize("num_processes", [1, 2])
def test_it_is_the_push_by_objects_and_a_late_joiner_gets_the_same(model: Path, num_processes: int) -> None:
    notes: list[str] = []
    with parts(model, notes, num_processes=num_processes) as (learner, fleet):
        push(learner, fleet)
        first, before = group_of(fleet), fleet.logprobs(TEXTS)
        assert first.size == 3 and not notes
        for seed in range(2):
            update(learner, seed)
            published = push(learner, fleet)
        assert group_of(fleet) == first and published.manifest.version == 2
        expected = fleet.logprobs(TEXTS)
        assert expected != before

        fleet.scale(3)
        fleet.wait_until_ready()  # the third has loaded the arrays that the learner keeps
        assert len(fleet.pids) == 3 and fleet.logprobs(TEXTS) == expected
        check_every_lease_once(fleet, version=2)
        push(learner, fleet)
        assert group_of(fleet).size == 4 and fleet.logprobs(TEXTS) == expected
        assert fleet.num_quarantined == 0


@pytest.mark.parametrize("engine", ["OneDies", pytest.param("OneStops", marks=pytest.mark.long)])
def test_who_is_lost_in_mid_broadcast_takes_nobody_along(model: Path, tmp_path: Path, engine: str) -> None:
    """The others load arrays; the next push goes to a new group, with the lost one's replacement."""
    notes: list[str] = []
    victim = tmp_path / "victim"
    limits = {"stall_timeout_s": 20.0} if engine == "OneStops" else {}
    chosen = parts(model, notes, f"{ENGINES}:{engine}", env={VICTIM: str(victim)}, **limits)
    with chosen as (learner, fleet):
        push(learner, fleet)
        old = group_of(fleet)
        update(learner)
        victim.touch()
        pids = fleet.pids
        push(learner, fleet)
        assert not victim.exists() and fleet.num_quarantined == 1
        assert any("the broadcast of version 1 broke off, so arrays are sent instead" in n for n in notes)
        check_every_lease_once(fleet, version=1)

        fleet.wait_until_ready()
        assert len(fleet.pids) == 2 and len(set(fleet.pids.values()) & set(pids.values())) == 1
        update(learner)
        push(learner, fleet)
        assert group_of(fleet) not in (None, old) and fleet.num_quarantined == 1
        check_every_lease_once(fleet, version=2)


@pytest.mark.long
def test_where_no_group_comes_about_all_load_arrays_of_the_new_version(model: Path) -> None:
    notes: list[str] = []
    with parts(model, notes, f"{ENGINES}:CannotJoin", stall_timeout_s=6.0) as (learner, fleet):
        push(learner, fleet)
        before = fleet.logprobs(TEXTS)
        update(learner)
        push(learner, fleet)
        assert group_of(fleet) is None and fleet.num_quarantined == 0
        assert sum("broke off, so arrays are sent instead: " in note for note in notes) == 2
        assert fleet.logprobs(TEXTS) != before
        check_every_lease_once(fleet, version=1)


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before it sends", "in mid-send"])
def test_a_learner_that_hangs_is_lost_and_another_sends_to_the_same_workers(
    model: Path, tmp_path: Path, moment: str
) -> None:
    victim = tmp_path / "victim"
    make, env = learner_that_stops, {VICTIM: str(victim)}
    with parts(model, [], stall_timeout_s=8.0, make=make, env=env) as (learner, fleet):
        push(learner, fleet)
        pids = fleet.pids
        published = learner.publish()
        (pid,) = learner.pids()
        if moment == "in mid-send":
            victim.touch()
        else:
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(LearnerSilent, match="no sign of life"):
            fleet.load_weights(published)
        assert not victim.exists()
        learner.restart()
        fleet.cancel_all()
        push(learner, fleet)
        assert fleet.pids == pids and fleet.num_quarantined == 0
        check_every_lease_once(fleet, version=0)
