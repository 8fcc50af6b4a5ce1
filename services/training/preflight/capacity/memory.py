"""Measure this machine's free memory, and reject a run that needs more."""

import os
import shutil
import tempfile
from pathlib import Path

from contracts.errors import InputError
from services.training.preflight.capacity.memory_model import FROZEN_BYTES, GIB, MemoryNeeds

CGROUPS = (  # limit, usage, key of reclaimable memory; versions 2 and 1
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


def check_memory(needs: MemoryNeeds, *, training: bool = True) -> None:
    """Reject a run that can't fit. With RAY_ADDRESS check nothing, because the cluster's memory counts.

    With GPUs, count only the memory that learner.offload keeps on the host.

    Raises:
        InputError: memory is short; the message lists each part and the available memory.
    """
    device = needs.learner.device
    has_gpu = device == "cuda" or (device == "auto" and Path("/dev/nvidiactl").exists())
    if os.environ.get("RAY_ADDRESS") or (has_gpu and not (training and needs.learner.offload)):
        return
    needed = needs.of_learner() if has_gpu else needs.least(training=training)
    total, available = sum(needed.values()), available_bytes()
    if total > available:
        listed = ", ".join(f"{what} {amount / GIB:.1f}" for what, amount in needed.items())
        way_out = (
            "learner.offload=false" if has_gpu else "fewer rollout.num_workers, or less rollout.kv_cache_gib"
        )
        raise InputError(
            f"too little memory: this run needs about {total / GIB:.1f} GiB ({listed}), and "
            f"{available / GIB:.1f} GiB are available. Take a smaller model, {way_out}"
        )
    _check_object_store(2 * FROZEN_BYTES * needs.num_parameters)


def available_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the free memory of the machine, or of the container's limit if that is less."""
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
    """Reject a full object store. Two versions of the weights pass through shared memory or the disk.

    Raises:
        InputError: no place has room for both.
    """
    places = [place for place in ("/dev/shm", tempfile.gettempdir()) if os.path.isdir(place)]
    free = {place: shutil.disk_usage(place).free for place in places}
    if max(free.values()) < needed:
        listed = ", ".join(f"{place} {amount / GIB:.2f} GiB" for place, amount in free.items())
        raise InputError(
            f"too little room for Ray's object store: two versions of the weights take "
            f"{needed / GIB:.2f} GiB; free: {listed}. In a container, raise the shared memory: "
            f"--shm-size={needed // GIB + 1}g"
        )
