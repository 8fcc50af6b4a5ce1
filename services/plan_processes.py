"""Which processes a run starts, how many of each, and what each of them reserves and computes with."""

import importlib.util
from dataclasses import dataclass

from reward_servers.settings import Part, ServerSettings
from services.model_files import ModelFiles
from services.placement import Reservation, placement
from services.settings import RunSettings

ASLEEP = {
    True: "asleep while the learner updates",
    None: "on a GPU asleep while the learner updates",
    False: "no GPU's memory to leave asleep",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the run would start: this machine, or a cluster of which nothing is asked here.

    Example: two cores and no GPU: `Machine(num_cores=2.0, num_gpus=0, cluster=None)`
    """

    num_cores: float
    num_gpus: int
    cluster: str | None  # RAY_ADDRESS


@dataclass(frozen=True, slots=True)
class Processes:
    """Processes of one kind. `num_gpus` is None where the cluster decides, when the run starts.

    Example: `Processes("rollout worker", "2", "vLLM, bfloat16, 2 threads", Reservation(0.0, 0.5))`
    """

    part: str
    count: str
    what: str
    num_cpus: float = 0.0
    num_gpus: float | None = 0.0


def processes(settings: RunSettings, model: ModelFiles, machine: Machine) -> list[Processes]:
    """The driver first, then what it starts."""
    placed = placement(settings, machine.num_gpus)
    open_shares = machine.cluster is not None and settings.cluster.worker_gpus is None
    uses_workers = _workers(settings, model, machine)
    rows = [
        Processes("driver", "1", "training loop, tasks, evaluation, tracking"),
        _row("learner", str(placed.num_learners), _learner(settings, machine), placed.learner, open_shares),
        _row("rollout worker", str(placed.num_workers), uses_workers, placed.worker, open_shares),
    ]
    if settings.plays:
        rows.append(_environments(settings))
    rows += [_server("reward", part, settings) for part in settings.reward]
    return rows + [_server("metric", part, settings) for part in settings.metrics]


def engine_of(settings: RunSettings, model: ModelFiles) -> str:
    """The one that `auto` will be."""
    asked = settings.rollout.engine
    if asked != "auto":
        return asked
    knows = importlib.util.find_spec("vllm") and not model.is_encoder_decoder
    return "vllm" if knows else "transformers"


def worker_dtype(settings: RunSettings, machine: Machine) -> str:
    """As `rollout_workers.engines.dtypes` will choose, where that can be told from here."""
    if settings.rollout.dtype != "auto":
        return settings.rollout.dtype
    on_gpu = has_gpu(machine, settings.cluster.worker_gpus)
    if on_gpu is None:
        return "bfloat16 on a GPU, float32 on a CPU"
    return "bfloat16" if on_gpu else "float32"


def has_gpu(machine: Machine, reserved: float | None) -> bool | None:
    """Whether a process that reserves so much of one computes on a GPU; None: the cluster decides."""
    if reserved is None and machine.cluster is not None:
        return None
    return bool(machine.num_gpus if reserved is None else reserved)


def sleeps(settings: RunSettings, machine: Machine) -> bool | None:
    """Whether workers leave their memory to the learner while it updates; None: the cluster decides."""
    return settings.rollout.sleep and has_gpu(machine, settings.cluster.worker_gpus)


def _row(part: str, count: str, what: str, reserved: Reservation, open_shares: bool) -> Processes:
    return Processes(part, count, what, reserved.num_cpus, None if open_shares else reserved.num_gpus)


def _learner(settings: RunSettings, machine: Machine) -> str:
    learner = settings.learner
    on_gpu = has_gpu(machine, settings.cluster.learner_gpus)
    auto = {None: "a GPU where its node has one", True: "cuda", False: "cpu"}[on_gpu]
    device = auto if learner.device == "auto" else learner.device
    shared = learner.num_processes > 1 and learner.num_threads is None
    threads = "all cores shared out" if shared else _threads(learner.num_threads)
    return f"{settings.algorithm_name}, on {device}, {threads}"


def _workers(settings: RunSettings, model: ModelFiles, machine: Machine) -> str:
    rollout = settings.rollout
    engine = {"vllm": "vLLM"}.get(engine_of(settings, model), "transformers")
    told = [engine, worker_dtype(settings, machine), _threads(rollout.num_threads)]
    if (size := rollout.tensor_parallel_size) > 1:
        on_cpu = has_gpu(machine, settings.cluster.worker_gpus) is False
        told.insert(1, f"split over {size} {'processes' if on_cpu else 'GPUs'}")
    told.append(f"{rollout.max_concurrent} rollouts at once")
    if rollout.sleep:
        told.append(ASLEEP[sleeps(settings, machine)])
    if settings.cluster.strategy != "none":
        told.append(f"placed together: {settings.cluster.strategy}")
    return ", ".join(told)


def _threads(asked: int | None) -> str:
    if asked is None:
        return "threads on all cores"
    return f"{asked} thread{'s' * (asked > 1)}"


def _environments(settings: RunSettings) -> Processes:
    parallel, workers = settings.environment.num_parallel, settings.rollout.num_workers
    what = f"{settings.environment_name}, at most {parallel} episodes at once beside each worker"
    if not settings.environment.isolated:
        return Processes("environment", "0", f"{what}, in the worker's own process")
    return Processes("environment", f"0–{parallel * workers}", what)


def _server(kind: str, part: Part, settings: RunSettings) -> Processes:
    server = settings.reward_servers.for_label(part.label)
    name = part.name if part.label == part.name else f"{part.label} ({part.name})"
    weight = f", weight {part.weight:g}" if kind == "reward" and len(settings.reward) > 1 else ""
    what = f"{name}{weight}, {server.batch_size} texts a call, answers within {server.timeout_s:g} s"
    return Processes(f"{kind} replica", _replicas(server), what, server.num_cpus, server.num_gpus)


def _replicas(server: ServerSettings) -> str:
    if server.replicas is not None or server.min_replicas == server.max_replicas:
        return str(server.most_replicas)
    return f"{server.min_replicas}–{server.max_replicas}"
