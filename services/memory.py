"""How much memory a run takes on a machine without GPUs, and how much there is."""

import os
import shutil
import tempfile
from pathlib import Path

from contracts.errors import InputError
from learner.algorithms.base import Masks
from services.settings import RunSettings

GIB = 2**30
LEARNER_PROCESS = 0.6 * GIB  # Python with torch and transformers, before a model
WORKER_PROCESS = 0.9 * GIB  # the same with vLLM
TRAINED_BYTES = 16  # a parameter's weight, gradient, and Adam's two moments, in float32
FROZEN_BYTES = 4
CGROUPS = (  # limit, usage, statistics with what can be given up; version 2, then version 1
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


def check_memory(
    settings: RunSettings,
    num_parameters: int,
    *,
    training: bool = True,
    trained_share: float = 1.0,
    base_bytes: float | None = None,
) -> None:
    """Refuse what can't fit. With GPUs, or on a cluster that runs elsewhere, this machine says nothing.

    Args:
        trained_share: of the model's layers, and roughly of its parameters (model.trainable_layers).
        base_bytes: of a whole model that is frozen beside what trains (model.adapter); None: the untrained
            rest of the layers is.

    Raises:
        InputError: with what is needed, part by part, and what there is.
    """
    if _has_gpu(settings) or os.environ.get("RAY_ADDRESS"):
        return
    needed = needed_bytes(
        settings, num_parameters, training=training, trained_share=trained_share, base_bytes=base_bytes
    )
    total, available = sum(needed.values()), available_bytes()
    if total > available:
        listed = ", ".join(f"{what} {amount / GIB:.1f}" for what, amount in needed.items())
        raise InputError(
            f"too little memory: this run needs about {total / GIB:.1f} GiB ({listed}), and "
            f"{available / GIB:.1f} GiB are available. Take a smaller model, fewer rollout.num_workers, "
            f"or less rollout.kv_cache_gib"
        )
    _check_object_store(2 * FROZEN_BYTES * num_parameters)


def needed_bytes(
    settings: RunSettings,
    num_parameters: int,
    *,
    training: bool = True,
    trained_share: float = 1.0,
    base_bytes: float | None = None,
) -> dict[str, float]:
    """What each part takes at least, in bytes; activations come on top. A frozen trunk is there once."""
    trunks = 2 if settings.model.value_trunk == "separate" else 1
    workers = settings.rollout.num_workers
    copies = 2 if isinstance(settings.algorithm, Masks) else 1  # the mask model is the second
    each = WORKER_PROCESS + copies * FROZEN_BYTES * num_parameters + settings.rollout.kv_cache_gib * GIB
    needed: dict[str, float] = {}
    if training:
        top = trained_share * num_parameters
        trunk = FROZEN_BYTES * (num_parameters - top) if base_bytes is None else base_bytes
        needed["learner with gradients and Adam"] = LEARNER_PROCESS + trunk + TRAINED_BYTES * top * trunks
        if settings.model.adapter.trains:
            if settings.model.adapter.serve == "merged":
                needed["merged weights on their way"] = FROZEN_BYTES * num_parameters
        elif settings.algorithm.online:
            needed["reference model"] = FROZEN_BYTES * top
        if isinstance(settings.algorithm, Masks):
            needed["mask model"] = FROZEN_BYTES * top
    needed[f"{workers} rollout worker{'s' * (workers > 1)}"] = workers * each
    return needed


def available_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """What can still be taken: of the machine, or of the container's limit where that is less."""
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
    """Two versions of the weights pass through Ray's object store: shared memory, or else the disk."""
    places = [place for place in ("/dev/shm", tempfile.gettempdir()) if os.path.isdir(place)]
    free = {place: shutil.disk_usage(place).free for place in places}
    if max(free.values()) < needed:
        listed = ", ".join(f"{place} {amount / GIB:.2f} GiB" for place, amount in free.items())
        raise InputError(
            f"too little room for Ray's object store: two versions of the weights take "
            f"{needed / GIB:.2f} GiB; free are: {listed}. In a container give more shared memory: "
            f"--shm-size={needed // GIB + 1}g"
        )


def _has_gpu(settings: RunSettings) -> bool:
    return settings.learner.device == "cuda" or (
        settings.learner.device == "auto" and Path("/dev/nvidiactl").exists()
    )
