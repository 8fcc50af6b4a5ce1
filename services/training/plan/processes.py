"""List the processes that a run starts, with their number and reservations."""

from collections.abc import Sequence
from dataclasses import dataclass

from learner.settings import LearnerSettings
from reward_servers.place import why_served
from reward_servers.settings import Part, RewardServersSettings, ServerSettings
from reward_servers.user_rewards.own import unit_of
from rollout_workers.engines.traits import traits_of
from rollout_workers.environments.base import EnvironmentSettings
from services.training.preflight.deployment import Deployment
from services.training.preflight.machine import threads_each
from services.training.preflight.placement import Reservation

ASLEEP = {
    True: "asleep while the learner updates",
    None: "on a GPU asleep while the learner updates",
    False: "never asleep, because it uses no GPU",
}


@dataclass(frozen=True, slots=True)
class Processes:
    """Processes of one kind. `num_gpus` is None if the cluster decides when the run starts.

    Example: `Processes("rollout worker", "2", "vLLM, bfloat16, 2 threads", Reservation(0.0, 0.5))`
    """

    part: str
    count: str
    what: str
    num_cpus: float = 0.0
    num_gpus: float | None = 0.0


def processes(learner: LearnerSettings, algorithm_name: str, deployed: Deployment) -> list[Processes]:
    """Return the driver first, then learner and workers."""
    placed, trains = deployed.placement, _learner(learner, algorithm_name, deployed)
    open_shares = deployed.workers_on_gpu is None
    return [
        Processes("driver", "1", "training loop, tasks, evaluation, tracking"),
        _row("learner", str(placed.num_learners), trains, placed.learner, open_shares),
        _row("rollout worker", str(placed.num_workers), _workers(deployed), placed.worker, open_shares),
    ]


def environments(environment: EnvironmentSettings, name: str, num_workers: int) -> Processes:
    """Return the processes in which workers play episodes."""
    parallel = environment.num_parallel
    what = f"{name}, at most {parallel} episodes at once beside each worker"
    if not environment.isolated:
        return Processes("environment", "0", f"{what}, in the worker's own process")
    return Processes("environment", f"0–{parallel * num_workers}", what)


def servers(
    rewards: Sequence[Part], metrics: Sequence[Part], settings: RewardServersSettings
) -> list[Processes]:
    """Return the processes of rewards, then those of metrics."""
    weighs = len(rewards) > 1
    rows = [_server("reward", part, settings.for_label(part.label), weighs) for part in rewards]
    return rows + [_server("metric", part, settings.for_label(part.label)) for part in metrics]


def _row(part: str, count: str, what: str, reserved: Reservation, open_shares: bool) -> Processes:
    return Processes(part, count, what, reserved.num_cpus, None if open_shares else reserved.num_gpus)


def _learner(learner: LearnerSettings, algorithm_name: str, deployed: Deployment) -> str:
    auto = {None: "a GPU where its node has one", True: "cuda", False: "cpu"}[deployed.learner_on_gpu]
    device = auto if learner.device == "auto" else learner.device
    threads = learner.num_threads or threads_each(deployed.machine.num_cores, learner.num_processes)
    return f"{algorithm_name}, on {device}, {_threads(threads)}"


def _workers(deployed: Deployment) -> str:
    rollout = deployed.rollout
    engine = traits_of(deployed.engine).title
    if engine == "vLLM" and rollout.engine == "auto" and deployed.workers_on_gpu is None:
        engine = "vLLM (transformers with a small model on CPUs)"
    dtype = deployed.engine_dtype or "bfloat16 on a GPU, float32 on a CPU"
    facts = [engine, dtype, _threads(rollout.num_threads or threads_each(deployed.machine.num_cores))]
    if (size := rollout.tensor_parallel_size) > 1:
        on_cpu = deployed.workers_on_gpu is False
        facts.insert(1, f"split over {size} {'processes' if on_cpu else 'GPUs'}")
    facts.append(f"{rollout.max_concurrent} rollouts at once")
    if rollout.sleep:
        facts.append(ASLEEP[deployed.workers_sleep])
    if deployed.strategy != "none":
        facts.append(f"placed together: {deployed.strategy}")
    return ", ".join(facts)


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def _server(kind: str, part: Part, server: ServerSettings, weighs: bool = False) -> Processes:
    name = part.name if part.label == part.name else f"{part.label} ({part.name})"
    weight = f", weight {part.weight:g}" if weighs else ""
    size = f"{server.batch_size} texts"
    if kind == "reward":
        size = {"groups": "a prompt's texts", "texts": "a text"}.get(unit_of(part), size)
    what = f"{name}{weight}, {size} a call, answers within {server.timeout_s:g} s"
    if (why := why_served(kind, part, server)) is None:
        return Processes(f"{kind} process", "1", f"{what}, beside the driver")
    what = f"{what}, on Ray Serve: {why}"
    return Processes(f"{kind} replica", _replicas(server), what, server.num_cpus, server.num_gpus)


def _replicas(server: ServerSettings) -> str:
    if server.replicas is not None or server.min_replicas == server.max_replicas:
        return str(server.most_replicas)
    return f"{server.min_replicas}–{server.max_replicas}"
