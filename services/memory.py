"""How much memory a run takes on a machine without GPUs, and how much there is."""

import os
import shutil
import tempfile
from pathlib import Path

from contracts.errors import InputError
from learner.algorithms.base import Masks
from learner.algorithms.trpo import TRPO
from services.adapter_checks import base_bytes as bytes_of_base
from services.adapter_checks import trained_share as share_of_adapter
from services.model_files import ModelFiles
from services.settings import RunSettings

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
    workers = settings.rollout.num_workers
    needed: dict[str, float] = {}
    if training:
        parts = learner_parts(settings, num_parameters, trained_share, base_bytes)
        processes = settings.learner.num_processes * LEARNER_PROCESS
        needed["learner with gradients and Adam"] = processes + sum(
            parts.pop(name) for name in TRAINS if name in parts
        )
        needed |= parts
    each = WORKER_PROCESS + sum(worker_parts(settings, num_parameters, FROZEN_BYTES).values())
    needed[f"{workers} rollout worker{'s' * (workers > 1)}"] = workers * each
    return needed


def share_and_base(
    settings: RunSettings, model: ModelFiles, num_parameters: int
) -> tuple[float, float | None]:
    """The share of a model that trains, and the bytes of what lies frozen beside an adapter.

    Raises:
        InputError: model.trainable_layers leaves none to freeze. Whether the architecture can be split, the
            learner says, when it has loaded the model.
    """
    if settings.model.adapter.trains:
        return share_of_adapter(settings, model), bytes_of_base(settings, model, num_parameters)
    if not model.num_layers:
        return 1.0, None
    return settings.model.num_trained(model.num_layers) / model.num_layers, None


def learner_parts(
    settings: RunSettings, num_parameters: int, trained_share: float, base_bytes: float | None
) -> dict[str, float]:
    """Bytes of the learner, in all its processes, by what they are for; the first of them are `TRAINS`.

    Processes share out one copy; TRPO's are not sharded, and each holds its own.
    """
    trunks = 2 if settings.model.value_trunk == "separate" else 1
    top = trained_share * num_parameters
    trunk = FROZEN_BYTES * (num_parameters - top) if base_bytes is None else base_bytes
    parts = {
        "weights": trunk + trunks * FROZEN_BYTES * top,
        "gradients": trunks * GRADIENT_BYTES * top,
        "optimiser's moments": trunks * MOMENT_BYTES[settings.algorithm.optimizer.name] * top,
    }
    if settings.model.adapter.trains:
        if settings.model.adapter.serve == "merged":
            parts["merged weights on their way"] = FROZEN_BYTES * num_parameters
    elif settings.algorithm.online:
        parts["reference model"] = FROZEN_BYTES * top
    if isinstance(settings.algorithm, Masks):
        parts["mask model"] = FROZEN_BYTES * top
    copies = settings.learner.num_processes if isinstance(settings.algorithm, TRPO) else 1
    found = {what: copies * size for what, size in parts.items()}
    return found | _last_push(settings, num_parameters, FROZEN_BYTES)


def worker_parts(settings: RunSettings, num_parameters: int, bytes_each: int) -> dict[str, float]:
    """Bytes in one worker's process, by what they are for, on a CPU.

    Args:
        bytes_each: of a weight.
    """
    parts = {"weights": float(bytes_each * num_parameters)}
    if isinstance(settings.algorithm, Masks):
        parts["mask model"] = float(bytes_each * num_parameters)
    parts |= _last_push(settings, num_parameters, bytes_each)
    return parts | {"KV cache": settings.rollout.kv_cache_gib * GIB}


def _last_push(settings: RunSettings, num_parameters: int, bytes_each: int) -> dict[str, float]:
    """What the next push is compared with, or laid into."""
    if settings.learner.push == "whole" or settings.model.adapter.serve == "adapter":
        return {}
    return {"last push, on the host": float(bytes_each * num_parameters)}


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
