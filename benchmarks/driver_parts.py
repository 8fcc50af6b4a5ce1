"""Partners of a simulated driver: values cross to them pickled, and their work does not count.

`controller` has them in one process. `start_fleet` has workers behind Ray, all of them in one actor: a
machine with two cores can't start 256 processes. The driver calls each as if it had its own process.
"""

import asyncio
import contextlib
import gc
import io
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console as Terminal

from contracts.clients import PublishedWeights, Scoring
from contracts.rollout import FinishReason, Lease, Prompt, Rollout, Sampling, Turn
from contracts.scores import MetricValue, Sample, Score
from contracts.settings import build
from contracts.weights import Probe, WeightManifest
from rollout_workers.fleet.fleet import Fleet
from rollout_workers.fleet.live_worker import LiveWorker
from rollout_workers.fleet.places import Place
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import WorkerReport
from services.config.settings import RunSettings
from services.runs.folder import RunFolder
from services.runs.tracking.console import Console
from services.runs.tracking.tracker import Tracker
from services.terminal.interrupts import StopRequest
from services.training.loop.collecting import Collector, FailureBudget
from services.training.loop.controller import Clients, Controller
from services.training.loop.evaluations.evaluator import Evaluator
from services.training.loop.journal import Journal
from services.training.loop.requests import RunRequests
from services.training.loop.scaling import Scaling
from services.training.sources.leasing import LeaseSource
from services.training.train.loop import Assembly

GROUP, PROMPT_TOKENS, WORDS = 8, 128, 50_000
DIFFERENT = 8  # responses that the engines write again and again
LOOKS = 20  # how often the driver looks at rollouts and scores while the learner trains


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a simulated iteration.

    Example: 1,024 rollouts of 512 tokens by 64 workers, and all scored at once: `Shape(64, 1024, 512)`
    """

    workers: int
    rollouts: int
    tokens: int
    staleness: int = 0  # 1: the next iteration is written while the learner trains
    slow_rewards: bool = False  # no score comes before all texts are written
    a_second: int = 5000  # rollouts that all workers of a fleet behind Ray finish


class Border:
    """Border between the driver and other processes, which counts bytes and the others' CPU seconds."""

    def __init__(self) -> None:
        self.num_bytes, self.beyond_s = 0, 0.0

    def crossed(self, value: Any) -> Any:
        """Return a copy of the driver's value, for a partner; only the driver's half is counted."""
        data = pickle.dumps(value, protocol=5)
        self.num_bytes += len(data)
        with self.beyond():
            return pickle.loads(data)

    def sent(self, value: Any) -> None:
        """Count a driver's value that a partner gets but never reads."""
        self.num_bytes += len(pickle.dumps(value, protocol=5))

    def brought(self, make: Callable[[], Any]) -> Any:
        """Return a partner's value; count only the driver's half."""
        with self.beyond():
            data = pickle.dumps(make(), protocol=5)
        self.num_bytes += len(data)
        return pickle.loads(data)

    @contextlib.contextmanager
    def beyond(self) -> Iterator[None]:
        started = time.process_time()
        gc.disable()  # the driver must not search a partner's objects
        yield
        gc.enable()
        self.beyond_s += time.process_time() - started


Response = tuple[tuple[int, ...], str, tuple[float, ...]]


def responses(num_tokens: int) -> list[Response]:
    """Return tokens, text and log-probabilities of some responses; log-probabilities are float32's."""
    chance = np.random.default_rng(0)
    made = []
    for _ in range(DIFFERENT):
        tokens = tuple(chance.integers(WORDS, size=num_tokens).tolist())
        logprobs = np.log(chance.random(num_tokens, dtype=np.float32) + np.float32(1e-6))
        made.append((tokens, " ".join(f"w{token % 1000:03}" for token in tokens), tuple(logprobs.tolist())))
    return made


def answered(lease: Lease, replies: Sequence[Response], version: int) -> Rollout:
    """Return a lease's rollout."""
    tokens, text, logprobs = replies[lease.id % DIFFERENT]
    turn = Turn(lease.tokens, tokens, f"{lease.id} {text}", logprobs, (version,) * len(tokens))
    return Rollout(lease.id, lease.group, lease.prompt, (turn,), FinishReason.STOP)


class Workers:
    """Workers that write simultaneously; like the real fleet, each poll brings one rollout of each."""

    environment_restarts = num_quarantined = 0
    idle_s = 0.0

    def __init__(self, shape: Shape, border: Border) -> None:
        self._shape, self._border, self._version = shape, border, 0
        self.num_workers = self.num_up = shape.workers
        self._live = [LiveWorker(f"worker {i}", i, Place()) for i in range(shape.workers)]
        self._waiting: list[deque[Lease]] = [deque() for _ in self._live]  # beyond the border
        self._said = responses(shape.tokens)
        self._num_generated = 0

    def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        self.submit(leases)
        while any(self._waiting):
            yield self.collect()

    def submit(self, leases: Sequence[Lease]) -> None:
        for worker, waiting, first in zip(self._live, self._waiting, range(len(leases)), strict=False):
            share = list(leases[first :: len(self._live)])
            worker.lease(share)
            waiting += self._border.crossed(share)

    def collect(self) -> list[Rollout]:
        rollouts: list[Rollout] = []
        for worker, waiting in zip(self._live, self._waiting, strict=True):
            if waiting:
                report = self._border.brought(partial(self._report, waiting.popleft()))
                rollouts += worker.answered(report, 60.0)
        return rollouts

    def _report(self, lease: Lease) -> WorkerReport:
        rollout = answered(lease, self._said, self._version)
        self._num_generated += rollout.num_generated
        return WorkerReport((rollout,), 1, self._num_generated, self._version)

    def cancel_all(self) -> None:
        raise NotImplementedError

    def sleep(self) -> None:
        raise NotImplementedError

    def scale(self, num_workers: int) -> None:
        raise NotImplementedError

    def logprobs(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        raise NotImplementedError

    def load_weights(self, weights: PublishedWeights) -> None:
        self._version = weights.manifest.version


class Rewards:
    """A reward that answers at once, or, if slow, when an iteration's texts are complete."""

    def __init__(self, shape: Shape, border: Border) -> None:
        self._shape, self._border, self._num_answered = shape, border, 0
        self._waiting: list[tuple[list[Score], Future[list[Score]]]] = []
        self._num_waiting = 0

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        crossed = self._border.crossed(tuple(samples))
        future: Future[list[Score]] = Future()
        scores = [
            Score(len(sample.text) % 97 / 97, {"length": len(sample.text) % 97 / 97}) for sample in crossed
        ]
        self._waiting.append((scores, future))
        self._num_waiting += len(samples)
        if not self._shape.slow_rewards or self._num_waiting >= self._shape.rollouts:
            for scores, promise in self._waiting:
                self._num_answered += len(scores)
                promise.set_result(self._border.brought(partial(list, scores)))
            self._waiting, self._num_waiting = [], 0
        return future

    def scoring(self) -> Scoring:
        return Scoring(self._num_answered)

    def compute_metrics(self, samples: Sequence[Sample], part: str | None = None) -> dict[str, MetricValue]:
        return {}

    def answers(self, texts: Sequence[str], part: str | None = None) -> list[str | None] | None:
        return None

    def cached(self) -> dict[str, float]:
        return {}

    def take_counts(self) -> dict[str, float]:
        return {}


class Learner:
    """A learner that only takes its batch once, like Ray's object store."""

    def __init__(self, border: Border) -> None:
        self._border, self._version = border, 0

    def update(
        self, rollouts: Sequence[Rollout], on_progress: Callable[[str, int, int], None]
    ) -> dict[str, float]:
        self._border.sent(list(rollouts))
        for done in range(LOOKS):
            on_progress("update", done, LOOKS)
        self._version += 1
        times = {"time/score_s": 0.5, "time/update_s": 2.0}
        return {**times, "tokens/trained": 1.0, "rollouts/trained": float(len(rollouts))}

    def publish(self) -> PublishedWeights:
        return PublishedWeights(WeightManifest(self._version, {}, 0, Probe((1,), (), 0.0)), {})

    def restart(self, on_progress: Callable[[str, int, int], None]) -> None:
        raise NotImplementedError

    def save(self, folder: str) -> None:
        raise NotImplementedError

    load = export = save


def lease_source(sampling: Sampling) -> LeaseSource:
    """Return leases of prompts of 128 words."""
    prompts = [Prompt(f"train/{i}", f"{i} " + "word " * PROMPT_TOKENS, ("yes",)) for i in range(1000)]
    tokens = tuple(range(1000, 1000 + PROMPT_TOKENS))
    return LeaseSource(prompts, lambda prompt: tokens, sampling, group_size=GROUP, seed=0)


def controller(shape: Shape, border: Border, folder: Path) -> Controller:
    """Return a run's loop with these partners."""
    settings = build(RunSettings, _options(shape, folder), where="")
    workers, rewards = Workers(shape, border), Rewards(shape, border)
    console = Console(Terminal(file=io.StringIO()))
    run = RunFolder.open(folder, "run", config=settings.resolved(), resume="auto")
    journal = Journal(run, Tracker.start(settings.tracking, folder, "run"), console)
    requests = RunRequests(StopRequest(), Scaling(run.path, workers, console.note))
    failures = FailureBudget(settings.reward_servers.max_failures, settings.environment.max_failures)
    patience_s, judging = settings.reward_patience_s, settings.judging
    collector = Collector(workers, rewards, failures, console, requests.look, patience_s, judging)
    assembly = Assembly(settings, Clients(workers, rewards, Learner(border)), collector)
    source = assembly.prompted(lease_source(settings.sampling()), settings.rollout.prompts_per_iteration)
    return assembly.controller(source, Evaluator({}, collector, lambda text: text), journal, requests)


def _options(shape: Shape, folder: Path) -> dict[str, Any]:
    rollout = {
        "prompts_per_iteration": shape.rollouts // GROUP,
        "max_tokens": shape.tokens,
        "max_staleness": shape.staleness,
    }
    return {
        "algorithm": "ppo",
        "task": "increasing_numbers",
        "model": {"path": "none"},
        "output_dir": str(folder),
        "run_name": "run",
        "iterations": 1000,
        "rollout": rollout,
        "tracking": {"enabled": False},
    }


class PacedWorker:
    """A worker behind Ray that finishes its leases in turn, at a fixed pace."""

    def __init__(self, num_tokens: int, a_second: float) -> None:
        self._said, self._a_second = responses(num_tokens), a_second
        self._waiting: deque[Lease] = deque()
        self._begun, self._num_finished = 0.0, 0

    def ready(self) -> int:
        return 1

    def close(self) -> None:
        return

    def submit(self, leases: Sequence[Lease]) -> None:
        if not self._waiting:
            self._begun, self._num_finished = time.monotonic(), 0
        self._waiting += leases

    async def poll(self, wait_s: float) -> WorkerReport:
        """Return the finished rollouts; wait for the next one for at most `wait_s`."""
        next_at = self._begun + (self._num_finished + 1) / self._a_second
        await asyncio.sleep(min(max(0.0, next_at - time.monotonic()), wait_s) if self._waiting else wait_s)
        due = int((time.monotonic() - self._begun) * self._a_second) - self._num_finished
        due_leases = [self._waiting.popleft() for _ in range(min(due, len(self._waiting)))]
        self._num_finished += len(due_leases)
        rollouts = tuple(answered(lease, self._said, 0) for lease in due_leases)
        return WorkerReport(rollouts, len(self._waiting), self._num_finished, 0)


class Hosts:
    """All workers of a fleet, in one actor."""

    def __init__(self, workers: int, num_tokens: int, a_second: float) -> None:
        self._workers = [PacedWorker(num_tokens, a_second) for _ in range(workers)]

    async def call(self, worker: int, name: str, arguments: dict[str, Any]) -> Any:
        returned = getattr(self._workers[worker], name)(**arguments)
        return await returned if asyncio.iscoroutine(returned) else returned

    async def apply(self, worker: int, func: Callable[..., Any], **arguments: Any) -> Any:
        returned = func(self._workers[worker], **arguments)
        return await returned if asyncio.iscoroutine(returned) else returned


@dataclass(frozen=True, slots=True)
class _Method:
    hosts: Any
    worker: int
    name: str

    def remote(self, **arguments: Any) -> Any:
        if self.name == "apply":
            return self.hosts.apply.remote(self.worker, **arguments)
        return self.hosts.call.remote(self.worker, self.name, arguments)


@dataclass(frozen=True, slots=True)
class HostedWorker:
    """Handle of one worker in the fleet's form."""

    hosts: Any
    worker: int

    def __getattr__(self, name: str) -> _Method:
        return _Method(self.hosts, self.worker, name)


def start_fleet(shape: Shape) -> Fleet:
    """Start the workers behind Ray."""
    import ray

    settings = RolloutSettings(num_workers=shape.workers, max_concurrent=shape.rollouts)
    hosts = ray.remote(Hosts).options(num_cpus=0, max_concurrency=4 * shape.workers + 8)
    actor = hosts.remote(shape.workers, shape.tokens, shape.a_second / shape.workers)
    numbers = iter(range(shape.workers))
    fleet = Fleet(lambda is_extra: HostedWorker(actor, next(numbers)), settings, lambda text: None)
    fleet.wait_until_ready()
    return fleet
