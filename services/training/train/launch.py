"""Start a run's parts on Ray: the learner's processes, the workers, the reward servers.

Importing this module imports Ray; `services/training/train/train.py` does so only after all checks.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import ray

from contracts.clients import Scoring
from contracts.conversations.chat_settings import ChatForm
from contracts.errors import LearnerFailed, LearnerLost, LearnerSilent
from contracts.network.loopback import JOINS_NODES
from contracts.processes import timeline
from contracts.processes.garbage import uncollected
from contracts.processes.gpus import hidden_unless
from contracts.rollout import MaskRule
from contracts.scores import MetricValue, Sample, Score
from learner.actors.group import LearnerGroup
from learner.actors.process import CALLS_AT_ONCE, LearnerProcess, load_learner
from learner.algorithms.base import Algorithm
from learner.distributed.rendezvous import Rendezvous
from learner.settings import ModelSettings
from reward_servers.by_part import ONE_TASK, ByPart
from reward_servers.evaluated_metrics import served_metrics
from reward_servers.place import why_served
from reward_servers.serving import beside
from reward_servers.serving.actor_watch import controller, grader_process, watched
from reward_servers.serving.app import deploy, remove
from reward_servers.serving.client import RewardClient, compute_metrics, find_answers
from reward_servers.settings import Part, RewardServersSettings
from reward_servers.user_rewards.trial import MADE_UP, Trial
from rollout_workers.environment_actors import start_environments
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.fleet.fleet import Fleet
from rollout_workers.fleet.processes import RolloutWorkerProcess
from services.config.settings import RunSettings
from services.models.chat_template import form_of
from services.models.files import read_model
from services.terminal.starting import Starting
from services.training.loop.controller import Clients
from services.training.loop.learner_restarts import LearnerRestarts
from services.training.preflight.capacity.worker_cache import cache_bytes
from services.training.preflight.deployment import Deployment, deployment_of
from services.training.preflight.machine import num_cores, threads_each
from services.training.preflight.placement import Reservation
from services.training.preflight.transport import choose_transport
from services.training.train.places import extra_place, gang, places_together
from services.training.train.ray_machine import ray_machine

# Large arrays come and go at every step. malloc keeps their memory in huge pages instead of returning it to
# the system, which made loading 400 MB of weights five times as fast. All arenas except the first return
# blocks above 64 MB, and an actor's calls run in other threads than the first. So use one arena for all.
MALLOC_TUNABLES = ":".join(
    (
        "glibc.malloc.arena_max=1",
        "glibc.malloc.hugetlb=1",
        "glibc.malloc.mmap_max=0",
        "glibc.malloc.trim_threshold=1099511627776",
    )
)
ACTOR_THREADS = 6  # calls at once: polls, weights and questions, while an engine computes

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RewardServers:
    """Client of one run's rewards and metrics: a `contracts.clients.RewardClient`."""

    client: RewardClient
    rewards: Sequence[Part]
    metrics: Sequence[Part]
    settings: RewardServersSettings
    by_part: ByPart = ONE_TASK

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        return self.client.submit(samples)

    def compute_metrics(self, samples: Sequence[Sample], part: str | None = None) -> dict[str, MetricValue]:
        metrics = [metric for metric in self.metrics if self.by_part.measures(metric.label, part)]
        if not metrics:
            return {}
        patience_s = max(self.settings.for_label(metric.label).timeout_s for metric in metrics)
        return compute_metrics(metrics, samples, patience_s, self.settings.retries)

    def answers(self, texts: Sequence[str], part: str | None = None) -> list[str | None] | None:
        return find_answers(self.by_part.graders(self.rewards, self.metrics, part), texts, self.settings)

    def cached(self) -> dict[str, float]:
        return self.client.cached()

    def take_counts(self) -> dict[str, float]:
        return self.client.take_counts()

    def scoring(self) -> Scoring:
        return self.client.scoring()


@contextlib.contextmanager
def service(
    settings: RunSettings,
    warn: Note,
    tell: Note | None = None,
    trial: Trial = MADE_UP,
    meanwhile: Callable[[], None] = lambda: None,
    gpu_bytes: float | None = None,
) -> Iterator[Clients]:
    """Start workers, learner and reward servers in parallel, slow ones first; yield them once all are up.

    If a learner's process and a worker share a GPU, and the plan does not know the size of the worker's KV
    cache, workers start after the learner.

    Args:
        warn: reports problems.
        tell: reports the progress of the start and of long calls; `warn` by default.
        meanwhile: called once, while the parts start.
        trial: texts to try the user's rewards and metrics.
        gpu_bytes: memory of the smallest GPU; None: no GPU, or unknown.
    """
    say = tell or warn
    starting = Starting(("the reward servers", "the learner", "the rollout workers"), say)
    model = model_of(settings.model, settings.algorithm, settings.environment)
    graders = settings.reward, served_metrics(settings.metrics), settings.reward_servers
    files, machine = read_model(settings.model), replace(ray_machine(), gpu_bytes=gpu_bytes)
    machines = deployment_of(settings, files, machine)
    machines = replace(machines, cache_bytes=cache_bytes(settings, files, machines))
    restarts = LearnerRestarts(settings.learner.max_restarts)
    say(f"rollouts are written by {machines.in_words}")

    def prepare() -> None:
        with timeline.span("prepares"), uncollected():
            fleet.prepare()
            meanwhile()

    with contextlib.ExitStack() as ends:
        with starting:
            learner = start_learner(settings, machines, warn, starting.hear, say)
            ends.callback(learner.stop)
            if machines.placement.workers_beside_a_learner and machines.cache_bytes is None:
                # vLLM would count the learner's memory as its own, and fails if memory becomes free.
                wait_for_learner(learner, restarts, warn)
            fleet = start_fleet(model, machines, warn, starting.hear, say)
            ends.callback(fleet.stop)
            with timeline.span("waits for the reward servers"):
                served = served_rewards(*graders, warn, trial, settings.by_part, prepare)
                rewards = ends.enter_context(served)
            starting.is_up("the reward servers")
            with timeline.span("waits for the learner"):
                wait_for_learner(learner, restarts, warn)
            starting.is_up("the learner")
            with timeline.span("waits for the rollout workers"):
                fleet.wait_until_ready()
            starting.is_up("the rollout workers")
        early = settings.learner.score_early
        if early is None:
            is_one = settings.learner.num_processes == 1 and not settings.model.adapter.roles
            early = machines.learner_is_alone and is_one
        yield Clients(fleet, rewards, learner, scores_early=early)


def wait_for_learner(learner: LearnerGroup, restarts: LearnerRestarts, warn: Note) -> None:
    """Wait until the learner's models are loaded; restart the learner if its process dies.

    Raises:
        InputError: the model can't be used.
        LearnerFailed: the learner raised an error, which a new one would raise again.
        LearnerSilent: the learner takes too long.
        RunError: too many learners died.
    """
    start = learner.wait_until_ready
    while True:
        try:
            return start()
        except (LearnerFailed, LearnerSilent):
            raise
        except LearnerLost as error:
            warn(f"{error}; {restarts.spend(error, 0)} starts")
            start = learner.restart


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """Model that workers write with, and its options.

    Example: a model without options: `WorkerModel("gpt2", "gpt2")`
    """

    path: str
    tokenizer: str
    revision: str | None = None
    mask: MaskRule | None = None
    environment: EnvironmentSettings | None = None
    lora_rank: int | None = None
    chat: ChatForm | None = None  # None: prompts are plain texts
    roles: tuple[str, ...] = ()  # roles with their own adapters


def model_of(model: ModelSettings, algorithm: Algorithm, environment: EnvironmentSettings) -> WorkerModel:
    """Return the model with which workers start."""
    chat = form_of(model.chat, environment.template, read_model(model).tokenizer_folder)
    return WorkerModel(
        model.path,
        model.tokenizer or model.path,
        model.revision,
        algorithm.mask_rule() if algorithm.traits.masks else None,
        environment.laid_out(by_template=chat is not None),
        model.adapter.r if model.adapter.serve == "adapter" else None,
        chat,
        model.adapter.roles,
    )


def start_fleet(
    model: WorkerModel,
    deployed: Deployment,
    note: Note,
    tell: Note | None = None,
    say: Note | None = None,
) -> Fleet:
    """Start the rollout workers; `wait_until_ready` waits for them."""
    rollout, strategy = deployed.engine_settings, deployed.strategy
    options = _options(deployed.placement.worker, rollout.num_threads or threads_each(_cores(deployed)))
    places = places_together(deployed, note)

    def make_worker(is_extra: bool) -> object:
        where = extra_place(strategy) if is_extra else places
        actor = ray.remote(RolloutWorkerProcess).options(max_concurrency=ACTOR_THREADS, **options, **where)
        return actor.remote(
            model.path,
            model.tokenizer,
            None,
            deployed.engine,
            rollout,
            model.mask,
            model.revision,
            model.environment,
            start_environments,
            model.lora_rank,
            model.chat,
            model.roles,
            deployed.cache_bytes,
        )

    return Fleet(make_worker, rollout, note, tell, say)


def start_learner(
    settings: RunSettings,
    deployed: Deployment,
    note: Note,
    tell: Note | None = None,
    say: Note | None = None,
) -> LearnerGroup:
    """Start the learner's processes; `wait_until_ready` waits for them."""
    transport = choose_transport(settings.learner, settings.model, deployed)
    threads = settings.learner.num_threads or threads_each(_cores(deployed), settings.learner.num_processes)
    options = _options(deployed.placement.learner, threads)
    actor = ray.remote(LearnerProcess)
    place_of = gang(deployed.placement, settings.learner.start_timeout_s, note)

    def make_learner(rendezvous: Rendezvous | None) -> object:
        return actor.options(max_concurrency=CALLS_AT_ONCE, **options, **place_of(rendezvous)).remote(
            partial(
                load_learner,
                settings.model.model_copy(update={"chat": settings.model.chat.with_text()}),
                settings.algorithm,
                settings.learner,
                seed=settings.seed,
                iterations=settings.iterations,
                sampling=settings.sampling(),
                max_turns=settings.environment.max_turns if settings.plays else 1,
                shares_gpu=settings.rollout.sleep,
                engine_rounds=deployed.engine_rounds,
                rendezvous=rendezvous,
            )
        )

    chosen = settings.learner.model_copy(update={"transport": transport})
    return LearnerGroup(make_learner, deployed.engine_settings.dtype, chosen, note, tell, say)


@contextlib.contextmanager
def served_rewards(
    rewards: Sequence[Part],
    metrics: Sequence[Part],
    settings: RewardServersSettings,
    warn: Note,
    trial: Trial = MADE_UP,
    by_part: ByPart = ONE_TASK,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[RewardServers]:
    """Start rewards and metrics, the user's after a trial; yield their client once all answer.

    On a cluster that outlives the run, they end with the run, even if they are still starting.

    Raises:
        InputError: a reward or a metric returns a wrong answer.
    """
    with contextlib.ExitStack() as ends:
        if not (rewards or metrics):
            meanwhile()
        else:
            ends.callback(beside.end_all)
            graders = [("reward", part) for part in rewards] + [("metric", part) for part in metrics]
            if any(why_served(kind, part, settings.for_label(part.label)) for kind, part in graders):
                ends.enter_context(watched([controller(settings)], warn))
            if "RAY_ADDRESS" in os.environ:
                ends.callback(remove, rewards, metrics)
            for warning in deploy(
                rewards, metrics, settings, http=False, beside=True, trial=trial, meanwhile=meanwhile
            ):
                warn(warning)
            ends.enter_context(watched(list(map(grader_process, beside.handles())), warn))
        client = ends.enter_context(contextlib.closing(RewardClient(rewards, settings, by_part)))
        yield RewardServers(client, rewards, metrics, settings, by_part)


def _cores(deployed: Deployment) -> float:
    """Return the cores that a process may use, on the cluster's smallest node or on this machine."""
    return (os.environ.get("RAY_ADDRESS") and deployed.machine.node_cores) or num_cores()


def _options(reserved: Reservation, threads: int) -> dict[str, object]:
    """Return an actor's options: its reservations, and its number of threads.

    By default, Ray gives an actor without reserved CPUs a single thread.
    """
    return {
        "num_cpus": reserved.num_cpus,
        "num_gpus": reserved.num_gpus,
        "runtime_env": {
            "env_vars": {
                "OMP_NUM_THREADS": str(threads),
                "GLIBC_TUNABLES": MALLOC_TUNABLES,
                **({JOINS_NODES: "1"} if os.environ.get("RAY_ADDRESS") else {}),
                **timeline.variable(),
                **hidden_unless(reserved.num_gpus),
            }
        },
    }
