"""Annotation over a cluster: reward servers on Ray Serve, asked by Ray Data; and who lets a model write.

    parts ─▶ Ray Data, `num_in_flight` actors ─▶ reward servers ─▶ scores ─▶ the actor, which keeps them

A part is one item of Ray Data. Its actor writes it before it takes the next: results that wait for this
process would be lost with it. The actors are on this process's machine, so that no disk has to be shared;
graders may be anywhere.
"""

import contextlib
import logging
import math
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import ray
import ray.data
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from contracts.errors import WhetstoneError
from contracts.rollout import Lease, Rollout
from reward_servers.app import deploy, remove
from reward_servers.client import RewardClient
from reward_servers.settings import Part, RewardServersSettings
from reward_servers.trial import Trial
from rollout_workers.fleet import Fleet
from rollout_workers.processes import RolloutWorkerProcess
from services.annotation_rewards import Execute, Job, Then, samples_of
from services.launch import ACTOR_THREADS, MALLOC_TUNABLES
from services.run_model import RunModel


class _Scorer:
    """One of Ray Data's actors: it waits for the reward servers, and computes nothing."""

    def __init__(
        self, rewards: Sequence[Part], settings: RewardServersSettings, timeout_s: float, then: bytes
    ) -> None:
        self._client, self._timeout_s = RewardClient(rewards, settings), timeout_s
        self._then: Then = pickle.loads(then)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        done = [self._do(pickle.loads(job)) for job in batch["job"]]
        return {"start": list(batch["start"]), "done": done}

    def _do(self, job: Job) -> bytes:
        """What was made of it, or the error that a person is to read, without Ray's own around it."""
        try:
            scores = self._client.submit(samples_of(job[1])).result(self._timeout_s)
            return pickle.dumps(self._then(job, scores))
        except WhetstoneError as error:
            return pickle.dumps(error)


@contextlib.contextmanager
def scored_on_cluster(
    rewards: Sequence[Part],
    settings: RewardServersSettings,
    num_in_flight: int,
    trial: Trial,
    note: Callable[[str], None],
) -> Iterator[Execute]:
    """The rewards, deployed on the cluster that this process is connected to; given is who asks them.

    On a cluster that goes on without this command they end with it.

    Raises:
        InputError: a reward of the user's own does not answer as it should.
    """
    try:
        for warning in deploy(rewards, (), settings, http=False, trial=trial):
            note(warning)
        yield asked_on_cluster(rewards, settings, num_in_flight)
    finally:
        if "RAY_ADDRESS" in os.environ:
            remove(rewards, ())


def asked_on_cluster(rewards: Sequence[Part], settings: RewardServersSettings, num_in_flight: int) -> Execute:
    """Those who ask the rewards, which are deployed."""
    timeout_s = settings.patience_s(part.label for part in rewards)

    def execute(jobs: Iterable[Job], then: Then) -> Iterator[tuple[int, Any]]:
        items = [{"start": job[0], "job": pickle.dumps(job)} for job in jobs]
        if not items:
            return
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        scored = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            _Scorer,
            fn_constructor_args=(tuple(rewards), settings, timeout_s, pickle.dumps(then)),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(num_in_flight, len(items))),
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            ),
        )
        for row in scored.iter_rows():
            done = pickle.loads(row["done"])
            if isinstance(done, WhetstoneError):
                raise done
            yield int(row["start"]), done

    return execute


@contextlib.contextmanager
def workers(model: RunModel, note: Callable[[str], None]) -> Iterator[Callable[[Sequence[Lease]], Any]]:
    """Rollout workers that write with the model as it is; given once they are up, ended at the end."""
    rollout = model.rollout
    num_gpus = ray.cluster_resources().get("GPU", 0)
    options = {
        "num_cpus": 0,
        # So many to a GPU that all find a place: an actor's share never spans two.
        "num_gpus": 1.0 / math.ceil(rollout.num_workers / num_gpus) if num_gpus else 0.0,
        "runtime_env": {
            "env_vars": {
                "OMP_NUM_THREADS": str(rollout.num_threads or os.cpu_count() or 1),
                "GLIBC_TUNABLES": MALLOC_TUNABLES,
            }
        },
    }

    def make_worker(is_extra: bool) -> object:
        actor = ray.remote(RolloutWorkerProcess).options(max_concurrency=ACTOR_THREADS, **options)
        return actor.remote(model.path, model.path, None, rollout.engine, rollout)

    fleet = Fleet(make_worker, rollout, note)

    def write(leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        return fleet.generate(leases)

    try:
        fleet.wait_until_ready()
        yield write
    finally:
        fleet.stop()
