"""Learners that broadcast to a fleet, in separate processes or in a thread of the test."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import ray

from contracts.clients import PublishedWeights
from contracts.weights import WeightGroup
from learner.actors.group import LearnerGroup
from learner.actors.process import CALLS_AT_ONCE, LearnerProcess
from learner.algorithms.ppo import PPO
from learner.distributed.rendezvous import MeetingPoint
from learner.learner import Learner
from learner.publishing.weight_sender import WeightSender
from learner.settings import LearnerSettings, ModelSettings
from rollout_workers.fleet.fleet import Fleet
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker
from tests.learner.tiny import random_rollouts

ENGINES = "tests.rollout_workers.receiving_engines"


@contextlib.contextmanager
def parts(
    model: Path,
    notes: list[str],
    engine: str = f"{ENGINES}:ReceivingEngine",
    *,
    env: dict[str, str] | None = None,
    stall_timeout_s: float = 60.0,
    num_processes: int = 1,
    make: Callable[..., Learner] = Learner,
    **rollout: Any,
) -> Iterator[tuple[LearnerGroup, Fleet]]:
    """A learner that sends over gloo, and two workers, as Ray's actors."""
    settings = LearnerSettings(
        device="cpu",
        num_threads=1,
        transport="gloo",
        stall_timeout_s=stall_timeout_s,
        num_processes=num_processes,
    )
    rollout_settings = RolloutSettings.model_validate({"num_workers": 2, "dtype": "float32", **rollout})
    options = {"num_cpus": 0, "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1", **(env or {})}}}
    worker = ray.remote(RolloutWorker).options(max_concurrency=6, **options)
    process = ray.remote(LearnerProcess).options(max_concurrency=CALLS_AT_ONCE, **options)
    path = str(model)

    def make_learner(rendezvous: Any) -> Any:
        load = partial(
            make,
            ModelSettings(path=path),
            PPO(num_epochs=1, learning_rate=1e-2),
            settings,
            seed=0,
            iterations=9,
            rendezvous=rendezvous,
        )
        return process.remote(load)

    fleet = Fleet(
        lambda is_extra: worker.remote(path, path, None, engine, rollout_settings),
        rollout_settings,
        notes.append,
        tell=print,
    )
    learner = LearnerGroup(make_learner, "float32", settings, notes.append, tell=print)
    try:
        learner.wait_until_ready()
        fleet.wait_until_ready()
        yield learner, fleet
    finally:
        learner.stop()
        fleet.stop()


def push(learner: LearnerGroup, fleet: Fleet) -> Any:
    published = learner.publish()
    fleet.load_weights(published)
    return published


def update(learner: LearnerGroup, seed: int = 0) -> None:
    learner.update(random_rollouts(4, seed=seed), lambda *_: None)


class InThread:
    """A learner in the test's own process, whose calls run in a thread."""

    def __init__(self, sender: WeightSender) -> None:
        self._sender, self._pool = sender, ThreadPoolExecutor(max_workers=1)
        self._point: MeetingPoint | None = None
        self._call: Future[Any] = Future()
        self.group: WeightGroup | None = None

    def published(self) -> PublishedWeights:
        return PublishedWeights(self._sender.announce("float32"), None, None, self.whole, self)

    def whole(self) -> PublishedWeights:
        return PublishedWeights(*self._sender.whole())

    def open(self, num_receivers: int) -> WeightGroup:
        self._point = MeetingPoint("127.0.0.1", num_receivers + 1)
        self.group = WeightGroup("gloo", self._point.address, num_receivers + 1, 60.0)
        self._call = self._pool.submit(self._sender.join, self.group)
        return self.group

    def has_joined(self) -> str | None:
        joined: str | None = self._call.result()
        return joined

    def send(self) -> Mapping[str, Any]:
        self._call = self._pool.submit(self._sender.send)
        return {}

    def has_sent(self) -> str | None:
        _, broken = self._call.result()
        return str(broken) if broken else None

    def keep(self) -> None:
        self.group = None
        self._sender.keep()

    def release(self) -> None:
        self._sender.release()
