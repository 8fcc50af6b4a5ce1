"""Where everything is started: Ray, the learner's actor, the workers, the reward servers. Nowhere else.

Importing this module imports Ray; `services/train.py` does so only after everything that can be
refused has been checked.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from contracts.access import protect_rays_token
from contracts.errors import DeadlineExceeded
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
from services.open_cluster import warning_if_open
from services.placement import Placement, Reservation, placement
from services.settings import RunSettings

# Large arrays come and go at every step. Keeping their memory, in huge pages, instead of handing it back
# to the system and faulting it in again, made loading 400 MB of weights five times as fast.
MALLOC_TUNABLES = ":".join(
    ("glibc.malloc.hugetlb=1", "glibc.malloc.mmap_max=0", "glibc.malloc.trim_threshold=1099511627776")
)
NOTE_AFTER_S = 5.0  # of waiting for workers' places
ACTOR_THREADS = 6  # calls answered at once: polls, weights and questions, while an engine computes


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

    def close(self) -> None:
        """Give up on what is under way: a call that is tried again after Ray's end would start Ray anew.

        On a cluster that goes on without the run, the servers end here.
        """
        self.client.close()
        if "RAY_ADDRESS" in os.environ:
            remove(self.rewards, self.metrics)


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """Ray: the cluster of RAY_ADDRESS, or one of this machine's own for as long as needed.

    `services/cli.py` keeps the latter to loopback.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.rllib.utils.actor_manager").setLevel(logging.CRITICAL)  # the fleet says it itself
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if "RAY_ADDRESS" in os.environ:
        context = ray.init(**quiet)
        if context.dashboard_url and (told := warning_if_open(f"http://{context.dashboard_url}")):
            logging.getLogger(__name__).warning("%s", told)
    else:
        # Threads, not Ray's processor counts, share a single machine's cores: actors ask for none.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # A game each has a process: more than Ray expects of two cores, which it would warn of.
        os.environ.setdefault("RAY_worker_maximum_startup_concurrency", "32")
        ray.init(address="local", include_dashboard=False, **quiet)
        protect_rays_token()
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def service(settings: RunSettings, note: Callable[[str], None], trial: Trial = MADE_UP) -> Iterator[Clients]:
    """Workers, learner and reward servers: started side by side, the slow ones first, all up when given.

    Args:
        trial: what the user's own rewards and metrics are tried on.
    """
    fleet = start_fleet(settings, settings.model.path, note)
    learner = start_learner(settings, note)
    with contextlib.ExitStack() as ends:
        ends.callback(learner.stop)
        ends.callback(fleet.stop)
        rewards = start_rewards(settings, note, trial)
        ends.callback(rewards.close)
        learner.wait_until_ready()
        fleet.wait_until_ready()
        yield Clients(fleet, rewards, learner)


def start_fleet(settings: RunSettings, model: str, note: Callable[[str], None]) -> Fleet:
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

    return Fleet(make_worker, rollout, note)


def start_learner(settings: RunSettings, note: Callable[[str], None]) -> LearnerGroup:
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

    return LearnerGroup(make_learner, dtype_of_workers(settings), settings.learner, note)


def dtype_of_workers(settings: RunSettings) -> str:
    """What their engines compute in. On a cluster that is not for the driver's node to say."""
    if settings.rollout.dtype == "auto" and "RAY_ADDRESS" in os.environ:
        return "bfloat16" if _placement(settings).worker.num_gpus else "float32"
    return engine_dtype(settings.rollout)


def start_rewards(
    settings: RunSettings, note: Callable[[str], None], trial: Trial = MADE_UP
) -> RewardServers:
    """Every reward and metric of the run, deployed and answering; the user's own ones are tried first.

    Raises:
        InputError: one does not answer as it should.
    """
    if settings.reward or settings.metrics:
        servers = settings.reward_servers
        for warning in deploy(settings.reward, settings.metrics, servers, http=False, trial=trial):
            note(warning)
    client = RewardClient(settings.reward, settings.reward_servers)
    return RewardServers(client, settings.reward, settings.metrics, settings.reward_servers)


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


def places_together(
    settings: RunSettings, placed: Placement, note: Callable[[str], None]
) -> dict[str, object]:
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
