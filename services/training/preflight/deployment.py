"""Decide a run's deployment: engine, number formats, reservations and places.

settings ─┐
model ────┼─▶ Deployment ─▶ plan, preflight, doctor (before the start), launch (with Ray's resources)
Machine ──┘
"""

import os
from dataclasses import dataclass

from rollout_workers.engines.choice import choose_dtype, choose_engine
from rollout_workers.engines.engine_arguments import ROUND
from rollout_workers.engines.traits import traits_of
from rollout_workers.settings import RolloutSettings
from services.config.cluster_settings import ClusterSettings
from services.config.settings import RunSettings
from services.models.files import ModelFiles
from services.training.preflight.capacity.memory import available_bytes
from services.training.preflight.machine import find_gpus, num_cores
from services.training.preflight.placement import Graders, Placement, placement


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine or cluster that a run starts on.

    Example: two cores and no GPU: `Machine(num_cores=2.0, num_gpus=0, cluster=None)`. Two nodes with eight
    GPUs of 80 GB each, and a terabyte beside them: `Machine(256.0, 16, gpu_bytes=80e9, nodes=(8, 8),
    host_bytes=1e12)`.
    """

    num_cores: float
    num_gpus: float
    cluster: str | None = None  # RAY_ADDRESS of a cluster whose resources are not read yet
    gpu_bytes: float | None = None  # memory of the smallest GPU; None: unknown
    nodes: tuple[int, ...] = ()  # GPUs of each node; (): all GPUs are on one node
    host_bytes: float | None = None  # free host memory on the node with the least; None: unknown
    node_cores: float | None = None  # fewest cores of a computing node; None: unknown
    gpu_name: str | None = None  # name in its driver, such as "NVIDIA H100 80GB HBM3"; None: unknown


@dataclass(frozen=True, slots=True)
class Deployment:
    """Decisions about a run's processes that its settings leave open.

    None stands for decisions of a cluster when the run starts.

    Example: GPT-2 on two cores without a GPU has engine "vllm", engine_dtype "float32", and reserves no GPU.
    """

    machine: Machine
    rollout: RolloutSettings  # the user's settings
    engine: str
    engine_dtype: str | None
    placement: Placement
    strategy: str  # how the workers are spread over nodes
    learner_on_gpu: bool | None
    workers_on_gpu: bool | None
    cache_bytes: int | None = None  # keys and values on each of a worker's GPUs; None: vLLM measures

    @property
    def workers_sleep(self) -> bool | None:
        """Tell whether workers free their memory for the learner while it updates."""
        return self.rollout.sleep and self.workers_on_gpu

    @property
    def engine_rounds(self) -> bool:
        """Tell whether the engine computes less exactly than in float32."""
        return self.engine_dtype != "float32" or not ROUND.isdisjoint(self.rollout.engine_args)

    @property
    def learner_is_alone(self) -> bool:
        """Tell whether the learner computes on a GPU that no worker uses."""
        return bool(self.learner_on_gpu) and self.placement.learner.num_gpus >= 1

    @property
    def in_words(self) -> str:
        """Return engine and number format in words.

        Example: "vLLM, float32"
        """
        return f"{traits_of(self.engine).title}, {self.engine_dtype or 'bfloat16 on a GPU, float32 on a CPU'}"

    @property
    def engine_settings(self) -> RolloutSettings:
        """Return the workers' settings with engine and number format filled in."""
        return self.rollout.model_copy(update={"engine": self.engine, "dtype": self.engine_dtype})


def this_machine() -> Machine:
    """Return this machine's cores and GPUs, and the cluster in RAY_ADDRESS."""
    gpus = find_gpus()
    cluster = os.environ.get("RAY_ADDRESS") or None
    if not gpus.usable:
        return Machine(num_cores(), 0, cluster)
    gpu_bytes = min(gpus.num_bytes, default=None)
    name = min(gpus.names, default=None)
    return Machine(
        num_cores(), len(gpus.names), cluster, gpu_bytes, host_bytes=available_bytes(), gpu_name=name
    )


def deployment(
    rollout: RolloutSettings,
    cluster: ClusterSettings,
    num_learners: int,
    machine: Machine,
    *,
    is_encoder_decoder: bool,
    prefers_transformers: bool = False,
    rewards: Graders = (),
) -> Deployment:
    """Decide what the settings leave open.

    Args:
        num_learners: processes of the learner; 0: only workers.
        prefers_transformers: whether the model is small and nothing requires vLLM; used on a CPU.
        rewards: GPUs that rewards and metrics reserve.
    """
    placed = placement(rollout, cluster, num_learners, machine.num_gpus, rewards)
    workers_on_gpu = _on_gpu(machine, cluster.worker_gpus, placed.worker.num_gpus)
    return Deployment(
        machine=machine,
        rollout=rollout,
        engine=choose_engine(
            rollout.engine,
            is_encoder_decoder=is_encoder_decoder,
            prefers_transformers=prefers_transformers and workers_on_gpu is False,
        ),
        engine_dtype=_dtype(rollout.dtype, workers_on_gpu),
        placement=placed,
        strategy=cluster.strategy,
        learner_on_gpu=_on_gpu(machine, cluster.learner_gpus, placed.learner.num_gpus),
        workers_on_gpu=workers_on_gpu,
    )


def deployment_of(settings: RunSettings, model: ModelFiles, machine: Machine) -> Deployment:
    """Return a run's deployment on a machine."""
    return deployment(
        settings.rollout,
        settings.cluster,
        settings.learner.num_processes,
        machine,
        is_encoder_decoder=model.is_encoder_decoder,
        prefers_transformers=model.is_small and not settings.prefers_vllm,
        rewards=settings.reserved_gpus,
    )


def _on_gpu(machine: Machine, gpus: float | None, reserved: float) -> bool | None:
    if gpus is None and machine.cluster is not None:
        return None
    return reserved > 0


def _dtype(dtype: str, on_gpu: bool | None) -> str | None:
    if on_gpu is None and dtype == "auto":
        return None
    return choose_dtype(dtype, on_gpu=bool(on_gpu))
