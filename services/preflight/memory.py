"""Estimate the memory that a run takes on a machine without GPUs, and measure what is available."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import InputError
from learner.algorithms.base import Algorithm
from learner.known_passes import loads_reference
from learner.settings import LearnerSettings, ModelSettings
from rollout_workers.settings import RolloutSettings
from services.models.files import ModelFiles
from services.preflight.adapter_checks import base_bytes, trained_share

GIB = 2**30
LEARNER_PROCESS = 0.6 * GIB  # Python with torch and transformers, before a model
WORKER_PROCESS = 0.9 * GIB  # the same with vLLM
FROZEN_BYTES = 4  # a parameter in float32
GRADIENT_BYTES = 4  # of a parameter that trains
MOMENT_BYTES = {"adamw": 8, "rmsprop": 4}  # likewise: two moments, or one
TRAINS = ("weights", "gradients", "optimiser's moments")
CGROUPS = (  # limit, usage, statistics with what can be given up; version 2, then version 1
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Settings and sizes that a run's memory depends on.

    Example: all of a small model trains:
    `MemoryNeeds(settings.model, settings.algorithm, settings.learner, settings.rollout, 1_000_000)`
    """

    model: ModelSettings
    algorithm: Algorithm
    learner: LearnerSettings
    rollout: RolloutSettings
    num_parameters: int
    trained_share: float = 1.0  # of the model's layers, and roughly of its parameters
    # Bytes of a whole model that is frozen beside an adapter; None: only the untrained layers are frozen
    base_bytes: float | None = None
    reference_parameters: int | None = None  # of model.reference.path; None: the reference is a copy

    def least(self, *, training: bool = True) -> dict[str, float]:
        """Return the bytes that each part takes at least; activations come on top."""
        workers = self.rollout.num_workers
        needed: dict[str, float] = {}
        if training:
            parts = self.of_learner()
            processes = self.learner.num_processes * LEARNER_PROCESS
            needed["learner with gradients and Adam"] = processes + sum(
                parts.pop(name) for name in TRAINS if name in parts
            )
            needed |= parts
        each = WORKER_PROCESS + sum(self.of_worker(FROZEN_BYTES).values())
        needed[f"{workers} rollout worker{'s' * (workers > 1)}"] = workers * each
        return needed

    def of_learner(self) -> dict[str, float]:
        """Return the bytes of the learner, in all its processes, by purpose; `TRAINS` come first.

        Processes share one copy. TRPO's are not sharded: each holds its own. A frozen trunk counts once.
        """
        trunks = 2 if self.model.value_trunk == "separate" else 1
        top = self.trained_share * self.num_parameters
        trunk = FROZEN_BYTES * (self.num_parameters - top) if self.base_bytes is None else self.base_bytes
        traits, adapter = self.algorithm.traits, self.model.adapter
        parts = {
            "weights": trunk + trunks * FROZEN_BYTES * top,
            "gradients": trunks * GRADIENT_BYTES * top,
            "optimiser's moments": trunks * MOMENT_BYTES[self.algorithm.optimizer.name] * top,
        }
        if adapter.trains:
            if adapter.serve == "merged":
                parts["merged weights on their way"] = FROZEN_BYTES * self.num_parameters
        elif loads_reference(self.algorithm):
            parts["reference model"] = FROZEN_BYTES * top
        if self.reference_parameters is not None:
            parts["reference model"] = float(FROZEN_BYTES * self.reference_parameters)
        if traits.masks:
            parts["mask model"] = FROZEN_BYTES * top
        copies = self.learner.num_processes if traits.update == "trust_region" else 1
        found = {what: copies * size for what, size in parts.items()}
        return found | self._last_push(FROZEN_BYTES)

    def of_worker(self, bytes_each: int) -> dict[str, float]:
        """Return the bytes of one worker's process on a CPU, by purpose.

        Args:
            bytes_each: size of one weight.
        """
        parts = {"weights": float(bytes_each * self.num_parameters)}
        if self.algorithm.traits.masks:
            parts["mask model"] = float(bytes_each * self.num_parameters)
        parts |= self._last_push(bytes_each)
        return parts | {"KV cache": self.rollout.kv_cache_gib * GIB}

    def _last_push(self, bytes_each: int) -> dict[str, float]:
        """Return the size of the copy with which a changed-weights push compares."""
        if self.learner.push == "whole" or self.model.adapter.serve == "adapter":
            return {}
        return {"last push, on the host": float(bytes_each * self.num_parameters)}


def share_and_base(
    asked: ModelSettings, model: ModelFiles, num_parameters: int
) -> tuple[float, float | None]:
    """Return the share of a model that trains, and the bytes of the frozen base beside an adapter.

    The learner says whether the architecture can be split, when it has loaded the model.

    Raises:
        InputError: model.trainable_layers leaves no layer to freeze.
    """
    if asked.adapter.trains:
        return trained_share(asked.adapter, model), base_bytes(asked.adapter, model, num_parameters)
    if not model.num_layers:
        return 1.0, None
    return asked.num_trained(model.num_layers) / model.num_layers, None


def check_memory(needs: MemoryNeeds, *, training: bool = True) -> None:
    """Refuse what can't fit; with GPUs, or on a cluster elsewhere, this machine's memory tells nothing.

    Raises:
        InputError: with what is needed, part by part, and what there is.
    """
    device = needs.learner.device
    has_gpu = device == "cuda" or (device == "auto" and Path("/dev/nvidiactl").exists())
    if has_gpu or os.environ.get("RAY_ADDRESS"):
        return
    needed = needs.least(training=training)
    total, available = sum(needed.values()), available_bytes()
    if total > available:
        listed = ", ".join(f"{what} {amount / GIB:.1f}" for what, amount in needed.items())
        raise InputError(
            f"too little memory: this run needs about {total / GIB:.1f} GiB ({listed}), and "
            f"{available / GIB:.1f} GiB are available. Take a smaller model, fewer rollout.num_workers, "
            f"or less rollout.kv_cache_gib"
        )
    _check_object_store(2 * FROZEN_BYTES * needs.num_parameters)


def available_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return what is left of the machine's memory, or of the container's limit where that is less."""
    import psutil

    machine = int(psutil.virtual_memory().available)
    for limit_file, usage_file, reclaimable in CGROUPS:
        try:
            limit = int((cgroup / limit_file).read_text())
            usage = int((cgroup / usage_file).read_text())
            statistics = (cgroup / limit_file).with_name("memory.stat").read_text().split()
        except (OSError, ValueError):  # no such control group, or "max": no limit
            continue
        cached = int(statistics[statistics.index(reclaimable) + 1]) if reclaimable in statistics else 0
        machine = min(machine, max(0, limit - usage + cached))
    return machine


def _check_object_store(needed: int) -> None:
    """Refuse a full object store: two versions of the weights pass through shared memory, or the disk.

    Raises:
        InputError: no place has room for both.
    """
    places = [place for place in ("/dev/shm", tempfile.gettempdir()) if os.path.isdir(place)]
    free = {place: shutil.disk_usage(place).free for place in places}
    if max(free.values()) < needed:
        listed = ", ".join(f"{place} {amount / GIB:.2f} GiB" for place, amount in free.items())
        raise InputError(
            f"too little room for Ray's object store: two versions of the weights take "
            f"{needed / GIB:.2f} GiB; free are: {listed}. In a container give more shared memory: "
            f"--shm-size={needed // GIB + 1}g"
        )
