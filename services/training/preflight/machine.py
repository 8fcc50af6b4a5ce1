"""Check the machine's cores, memory, disks, GPUs and ports, for `whetstone doctor`."""

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Literal

from services.training.preflight.capacity.memory import available_bytes
from services.training.preflight.capacity.memory_model import GIB

SETUP = {"cpu": "make setup", "cuda": "make setup EXTRA=cuda"}
MIN_MEMORY_GIB, FAIR_MEMORY_GIB = 2.0, 4.0  # a learner and one worker with a tiny model take about 3
MIN_DISK_GIB, FAIR_DISK_GIB = 1.0, 5.0
FAIR_SHARED_MEMORY_GIB = 1.0

Status = Literal["ok", "warning", "missing", "damaged"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check of the machine or of a run's folder. `remedy` is a command or a sentence.

    If a finding about the machine is "missing", no run can start. Files of a folder may be "damaged".

    Example: `Finding("disk", "warning", "3.1 GiB free in /home/ada", "free some: checkpoints are large")`
    """

    topic: str
    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs that the driver shows, and whether the installed torch can use them."""

    names: tuple[str, ...]
    usable: bool
    detail: str = ""
    num_bytes: tuple[int, ...] = ()  # memory of each GPU, if usable


def num_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the cores that this process may use, by its affinity and its container's quota."""
    count: float = len(os.sched_getaffinity(0))
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        count = min(count, int(quota) / int(period))
    except (OSError, ValueError):  # no such control group, or "max": no quota
        pass
    return count


def multiplies_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether the processor has AMX units, which multiply in bfloat16."""
    try:
        return "amx_bf16" in cpuinfo.read_text().split()
    except OSError:  # not Linux
        return False


def threads_each(num_cores: float, num_processes: int = 1) -> int:
    """Return how many threads each process gets if the processes share the cores.

    >>> threads_each(8.0), threads_each(8.0, 3), threads_each(1.5, 2)
    (8, 2, 1)
    """
    return max(1, int(num_cores) // num_processes)


def cores(cgroup: Path = Path("/sys/fs/cgroup")) -> Finding:
    count = num_cores(cgroup)
    if count < 2:
        return Finding("cores", "warning", f"{count:g}", "a run works, slowly: its parts take turns")
    return Finding("cores", "ok", f"{count:g}")


def memory(cgroup: Path = Path("/sys/fs/cgroup")) -> Finding:
    """Check how much memory a run can still take."""
    import psutil

    total_gib, available_gib = psutil.virtual_memory().total / GIB, available_bytes(cgroup) / GIB
    detail = f"{available_gib:.1f} GiB available, {total_gib:.1f} GiB in the machine"
    return _by_amount(
        "memory",
        available_gib,
        (MIN_MEMORY_GIB, FAIR_MEMORY_GIB),
        detail,
        "end other programs, or use a larger machine",
    )


def disk(folder: Path) -> Finding:
    free_gib = shutil.disk_usage(folder).free / GIB
    return _by_amount(
        "disk",
        free_gib,
        (MIN_DISK_GIB, FAIR_DISK_GIB),
        f"{free_gib:.1f} GiB free in {folder}",
        "free some, or set output_dir= elsewhere: checkpoints hold the model three times",
    )


def shared_memory(place: Path = Path("/dev/shm")) -> Finding:
    """Check the place of Ray's object store, which holds weights and rollouts in transit."""
    if not place.is_dir():
        return Finding("shared memory", "warning", f"no {place}", "Ray uses the disk instead, slowly")
    free_gib = shutil.disk_usage(place).free / GIB
    detail = f"{free_gib:.2f} GiB free in {place}"
    if free_gib < FAIR_SHARED_MEMORY_GIB:
        return Finding("shared memory", "warning", detail, "in a container: docker run --shm-size=4g …")
    return Finding("shared memory", "ok", detail)


def find_gpus() -> Gpus:
    """Find GPUs with torch if it is installed, otherwise with nvidia-smi."""
    if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")):
        return Gpus((), usable=False)  # without importing torch, which takes seconds
    if util.find_spec("torch") is None:
        return Gpus(_names_by_driver(), usable=False, detail="torch is not installed")
    import torch

    if not torch.cuda.is_available():
        return Gpus(_names_by_driver(), usable=False, detail=f"torch {torch.__version__} can't use it")
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    names = tuple(f"{p.name}, {p.total_memory / GIB:.0f} GiB" for p in properties)
    return Gpus(names, usable=True, num_bytes=tuple(p.total_memory for p in properties))


def gpu(gpus: Gpus) -> Finding:
    if not gpus.names:
        return Finding("GPU", "ok", "none; the CPU suffices")
    detail = f"{len(gpus.names)} × {gpus.names[0]}"
    if gpus.usable:
        return Finding("GPU", "ok", detail)
    return Finding("GPU", "warning", f"{detail}, idle: {gpus.detail}", SETUP["cuda"])


def port(number: int, user: str) -> Finding:
    """Check that the port is free; only the command `user` needs it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            remedy = (
                f"choose another for {user}, or end the program that uses it: ss -ltnp 'sport = :{number}'"
            )
            return Finding(f"port {number}", "warning", f"taken; {user} needs it", remedy)
    return Finding(f"port {number}", "ok", f"free, for {user}")


def least_gpu_bytes() -> int | None:
    """Return the bytes of the smallest GPU's memory, as nvidia-smi reports it; None: it reports no size."""
    sizes = [line for line in _asked_of_driver("memory.total", "nounits") if line.isdecimal()]
    return min(int(mebibytes) for mebibytes in sizes) * 2**20 if sizes else None


def _names_by_driver() -> tuple[str, ...]:
    return _asked_of_driver("name,memory.total") or ("unknown GPU",)


def _asked_of_driver(columns: str, *options: str) -> tuple[str, ...]:
    form = ",".join(("csv", "noheader", *options))
    query = ["nvidia-smi", f"--query-gpu={columns}", f"--format={form}"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(answer.splitlines())


def _by_amount(topic: str, amount: float, limits: tuple[float, float], detail: str, remedy: str) -> Finding:
    least, fair = limits
    if amount < least:
        return Finding(topic, "missing", f"{detail}; at least {least:g} GiB are needed", remedy)
    if amount < fair:
        return Finding(topic, "warning", detail, remedy)
    return Finding(topic, "ok", detail)
