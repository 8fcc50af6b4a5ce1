"""Where a run's parts are started on Ray: the learner's actor, the workers, the reward servers. Nowhere else.

Importing this module imports Ray; `services/train.py` does so only after everything that can be
refused has been checked.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from contracts.errors import DeadlineExceeded, LearnerFailed, LearnerLost, LearnerSilent
from contracts.scores import MetricValue, Sample, Score
from learner.algorithms.base import Masks
from learner.group import LearnerGroup
from learner.learner import Learner
from learner.process import CALLS_AT_ONCE, LearnerProcess
from learner.ranks import Rendezvous
from reward_servers.app import deploy, remove
from reward_servers.client import RewardClient, compute_metrics
from reward_servers.settings import Part, RewardServersSettings
from reward_servers.trial import MADE_UP, Trial
from rollout_workers.engines.dtypes import engine_dtype
from rollout_workers.environment_actors import start_environments
from rollout_workers.fleet import Fleet
from rollout_workers.processes import RolloutWorkerProcess
from services.controller import Clients
from services.doing import doing
from services.losses import Losses
from services.placement import Placement, Reservation, placement
from services.readable import duration
from services.settings import RunSettings

# Large arrays come and go at every step. Keeping their memory, in huge pages, instead of handing it back
# to the system and faulting it in again, made loading 400 MB of weights five times as fast.
MALLOC_TUNABLES = ":".join(
    ("glibc.malloc.hugetlb=1", "glibc.malloc.mmap_max=0", "glibc.malloc.trim_threshold=1099511627776")
)
NOTE_AFTER_S = 5.0  # of waiting for workers' places
ACTOR_THREADS = 6  # calls answered at once: polls, weights and questions, while an engine computes

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RewardServers:
    """`contracts.clients.RewardClient`: rewards and metrics of one run."""

    client: RewardClient
    rewards: tuple[Part, ...]
    metrics: tuple[Part, ...]
    settings: RewardServersSettings

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        return self.client.submit(samples)

    def compute_metrics(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        if not self.metrics:
            return {}
        patience_s = max(self.settings.for_label(part.label).timeout_s for part in self.metrics)
        return compute_metrics(self.metrics, samples, patience_s, self.settings.retries)

    def cached(self) -> dict[str, float]:
        return self.client.cached()


@contextlib.contextmanager
def service(
    settings: RunSettings, warn: Note, tell: Note | None = None, trial: Trial = MADE_UP
) -> Iterator[Clients]:
    """Workers, learner and reward servers: started side by side, the slow ones first, all up when given.

    Args:
        warn: is told of what goes wrong.
        tell: is told how the start gets on; by default `warn`.
        trial: what the user's own rewards and metrics are tried on.
    """
    tell, began = tell or warn, time.monotonic()

    def is_up(part: str) -> None:
        tell(f"{part} up after {duration(time.monotonic() - began)}")

    tell("starting the rollout workers, the learner and the reward servers")
    fleet = start_fleet(settings, settings.model.path, warn, tell)
    learner = start_learner(settings, warn, tell)
    with contextlib.ExitStack() as ends:
        ends.callback(learner.stop)
        ends.callback(fleet.stop)
        rewards = ends.enter_context(served_rewards(settings, warn, tell, trial))
        is_up("the reward servers are")
        wait_for_learner(learner, Losses(settings.learner.max_restarts), warn)
        is_up("the learner is")
        fleet.wait_until_ready()
        is_up("the rollout workers are")
        yield Clients(fleet, rewards, learner)


def wait_for_learner(learner: LearnerGroup, losses: Losses, warn: Note) -> None:
    """Wait until its models are loaded; where its process died meanwhile, another one starts.

    Raises:
        InputError: the model can't be used.
        LearnerFailed: it raised: another would do so as well.
        LearnerSilent: it takes too long.
        RunError: too many died.
    """
    start = learner.wait_until_ready
    while True:
        try:
            return start()
        except (LearnerFailed, LearnerSilent):
            raise
        except LearnerLost as error:
            warn(f"{error}; {losses.count(error, 0)} starts")
            start = learner.restart


def start_fleet(settings: RunSettings, model: str, note: Note, tell: Note | None = None) -> Fleet:
    """The rollout workers, starting; `wait_until_ready` waits for them."""
    rollout = settings.rollout
    mask = settings.algorithm.mask_rule() if isinstance(settings.algorithm, Masks) else None
    placed = _placement(settings)
    options, places = _options(placed.worker, rollout.num_threads), places_together(settings, placed, note)
    tokenizer = settings.model.tokenizer or model
    revision = settings.model.revision if model == settings.model.path else None
    adapter = settings.model.adapter
    lora_rank = adapter.r if adapter.serve == "adapter" and model == settings.model.path else None

    def make_worker(is_extra: bool) -> object:
        where = extra_place(settings) if is_extra else places
        actor = ray.remote(RolloutWorkerProcess).options(max_concurrency=ACTOR_THREADS, **options, **where)
        return actor.remote(
            model,
            tokenizer,
            None,
            rollout.engine,
            rollout,
            mask,
            revision,
            settings.environment,
            start_environments,
            lora_rank,
        )

    return Fleet(make_worker, rollout, note, tell)


def start_learner(settings: RunSettings, note: Note, tell: Note | None = None) -> LearnerGroup:
    """Its processes, starting; `wait_until_ready` waits for them."""
    cores = max(1, (os.cpu_count() or 1) // settings.learner.num_processes)
    options = _options(_placement(settings).learner, settings.learner.num_threads or cores)
    actor = ray.remote(LearnerProcess).options(max_concurrency=CALLS_AT_ONCE, **options)

    def make_learner(rendezvous: Rendezvous | None) -> object:
        return actor.remote(
            partial(
                Learner,
                settings.model,
                settings.algorithm,
                settings.learner,
                seed=settings.seed,
                iterations=settings.iterations,
                sampling=settings.sampling(),
                max_turns=settings.environment.max_turns if settings.plays else 1,
                shares_gpu=settings.rollout.sleep,
                rendezvous=rendezvous,
            )
        )

    return LearnerGroup(make_learner, dtype_of_workers(settings), settings.learner, note, tell)


def dtype_of_workers(settings: RunSettings) -> str:
    """What their engines compute in. On a cluster that is not for the driver's node to say."""
    if settings.rollout.dtype == "auto" and "RAY_ADDRESS" in os.environ:
        return "bfloat16" if _placement(settings).worker.num_gpus else "float32"
    return engine_dtype(settings.rollout)


@contextlib.contextmanager
def served_rewards(
    settings: RunSettings, warn: Note, tell: Note, trial: Trial = MADE_UP
) -> Iterator[RewardServers]:
    """Every reward and metric of the run, deployed and answering; the user's own ones are tried first.

    On a cluster that goes on without the run they end with it, however far their start has come.

    Raises:
        InputError: one does not answer as it should.
    """
    try:
        if settings.reward or settings.metrics:
            with doing("starting the reward servers", tell):
                servers = settings.reward_servers
                for warning in deploy(settings.reward, settings.metrics, servers, http=False, trial=trial):
                    warn(warning)
        client = RewardClient(settings.reward, settings.reward_servers)
        with contextlib.closing(client):
            yield RewardServers(client, settings.reward, settings.metrics, settings.reward_servers)
    finally:
        if "RAY_ADDRESS" in os.environ:
            remove(settings.reward, settings.metrics)


def _placement(settings: RunSettings) -> Placement:
    """With the GPUs that the cluster has now."""
    return placement(settings, ray.cluster_resources().get("GPU", 0))


def _options(reserved: Reservation, num_threads: int | None) -> dict[str, object]:
    """What an actor reserves, and how many threads it may use.

    Ray gives an actor without processors of its own a single thread unless told otherwise.
    """
    threads = str(num_threads or os.cpu_count() or 1)
    return {
        "num_cpus": reserved.num_cpus,
        "num_gpus": reserved.num_gpus,
        "runtime_env": {"env_vars": {"OMP_NUM_THREADS": threads, "GLIBC_TUNABLES": MALLOC_TUNABLES}},
    }


def places_together(settings: RunSettings, placed: Placement, note: Note) -> dict[str, object]:
    """All workers' places at once, laid out as `cluster.strategy` says; a worker takes any that is free, so
    that a replacement finds the lost one's, or another that Ray made for it.

    Raises:
        DeadlineExceeded: the cluster has not had room for all of them in time.
    """
    strategy, patience_s = settings.cluster.strategy, settings.rollout.start_timeout_s
    if strategy == "none":
        return {}
    bundles = [placed.worker.resources] * placed.num_workers
    group = placement_group(bundles, strategy=strategy.upper())
    asked = f"cluster.strategy={strategy}: {placed.num_workers} places of {placed.worker.resources}"
    if not group.wait(min(NOTE_AFTER_S, patience_s)):
        note(f"waiting for {asked}; the cluster has {_shown(ray.cluster_resources())}")
        if not group.wait(patience_s):
            raise DeadlineExceeded(
                f"waited {patience_s:g} s (rollout.start_timeout_s) for {asked}; the cluster has "
                f"{_shown(ray.cluster_resources())}, of which {_shown(ray.available_resources())} are free"
            )
    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group)}


def extra_place(settings: RunSettings) -> dict[str, object]:
    """Of a worker that was added: beside the group of those that the run began with, which can't grow.

    Ray spreads it as well as it can, where the others are spread.
    """
    return {"scheduling_strategy": "SPREAD"} if "spread" in settings.cluster.strategy else {}


def _shown(resources: dict[str, float]) -> str:
    """
    >>> _shown({"CPU": 4.0, "memory": 1e9})
    '4 CPU, 0 GPU'
    """
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
