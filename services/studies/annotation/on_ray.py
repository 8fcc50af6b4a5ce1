"""Annotate on a Ray cluster: reward servers on Ray Serve, Ray Data's actors, rollout workers.

    parts ─▶ Ray Data, `num_in_flight` actors ─▶ reward servers ─▶ scores ─▶ the actor, which saves them

A part is one item of Ray Data. Its actor saves it before taking the next, because results waiting for this
process would be lost with it. The actors run on this process's machine, so no shared disk is needed. Graders
may run anywhere.
"""

import contextlib
import logging
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import ray
import ray.data
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from contracts.errors import WhetstoneError
from contracts.rollout import Lease, Rollout
from reward_servers.serving.actor_watch import controller, watched
from reward_servers.serving.app import deploy, remove
from reward_servers.serving.client import RewardClient
from reward_servers.settings import Part, RewardServersSettings
from reward_servers.user_rewards.trial import Trial
from services.config.cluster_settings import ClusterSettings
from services.inference.generation.run_model import RunModel
from services.training.preflight.deployment import deployment
from services.training.sources.row_rewards import Execute, Job, Then, awaited, samples_of
from services.training.train.launch import WorkerModel, start_fleet
from services.training.train.ray_machine import ray_machine


class _Scorer:
    """Actor of Ray Data that only waits for the reward servers."""

    def __init__(
        self, rewards: Sequence[Part], settings: RewardServersSettings, patience_s: float, then: bytes
    ) -> None:
        self._client, self._patience_s = RewardClient(rewards, settings), patience_s
        self._then: Then = pickle.loads(then)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        done = [self._do(pickle.loads(job)) for job in batch["job"]]
        return {"start": list(batch["start"]), "done": done}

    def _do(self, job: Job) -> bytes:
        """Return the pickled result of a job, or its error without Ray's wrapper."""
        try:
            scores = awaited(self._client, samples_of(job[1]), self._patience_s)
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
    """Deploy the rewards on this process's cluster, and yield a function that sends them jobs to score.

    If the cluster outlives this command, the rewards are removed from it at the end.

    Raises:
        InputError: a user's reward gives a wrong answer in its trial.
    """
    with contextlib.ExitStack() as ends:
        ends.enter_context(watched([controller(settings)], note))
        if "RAY_ADDRESS" in os.environ:
            ends.callback(remove, rewards, ())
        for warning in deploy(rewards, (), settings, http=False, trial=trial):
            note(warning)
        yield asked_on_cluster(rewards, settings, num_in_flight)


def asked_on_cluster(rewards: Sequence[Part], settings: RewardServersSettings, num_in_flight: int) -> Execute:
    """Return a function that sends jobs to the deployed rewards from Ray Data's actors."""
    patience_s = settings.patience_s(part.label for part in rewards)

    def execute(jobs: Iterable[Job], then: Then) -> Iterator[tuple[int, Any]]:
        items = [{"start": job[0], "job": pickle.dumps(job)} for job in jobs]
        if not items:
            return
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        scored = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            _Scorer,
            fn_constructor_args=(tuple(rewards), settings, patience_s, pickle.dumps(then)),
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
    """Start rollout workers with the model's weights, yield a generating function, then stop them."""
    deployed = deployment(
        model.rollout,
        ClusterSettings(),
        num_learners=0,
        machine=ray_machine(),
        is_encoder_decoder=model.files.is_encoder_decoder,
        prefers_transformers=model.files.is_small and not model.rollout.needs_vllm,
    )
    fleet = start_fleet(WorkerModel(model.path, model.path), deployed, note)

    def write(leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        return fleet.generate(leases)

    try:
        fleet.wait_until_ready()
        yield write
    finally:
        fleet.stop()
