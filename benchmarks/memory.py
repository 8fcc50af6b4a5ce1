"""(e) Peak memory of learner and worker for GPT-2's shape, and the minimum for its numbers."""

import tempfile
from pathlib import Path

import psutil

from benchmarks.models import gpt2_124m
from benchmarks.outcome import publish, silent_console
from services.cluster.ray_cluster import cluster
from services.config.compose import run_settings
from services.config.settings import RunSettings
from services.runs.folder import RunFolder
from services.runs.tracking.tracker import Tracker
from services.terminal.interrupts import StopRequest
from services.training.train import launch
from services.training.train.loop import controller

MB = 1e6
PARAMETERS = 124_439_808
KV_CACHE_GIB = 1


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = run_settings(
            [
                f"model.path={gpt2_124m()}",
                f"output_dir={folder}",
                "tracking.enabled=false",
                "rollout.prompts_per_iteration=16",
                "rollout.max_tokens=32",
                f"rollout.kv_cache_gib={float(KV_CACHE_GIB)}",
                "algorithm.num_epochs=1",
                "learner.token_budget=1024",
            ]
        )
        peaks = measure(settings)
    numbers = PARAMETERS * 4 / MB
    rows = {
        "parameters, MB": numbers,
        "learner must hold: parameters, gradients, two moments, reference": 5 * numbers,
        "learner, empty (libraries), MB": peaks["learner, empty"],
        "learner, peak, MB": peaks["learner"],
        "learner, peak less empty / must hold": (peaks["learner"] - peaks["learner, empty"]) / (5 * numbers),
        "worker must hold: parameters and cache, MB": numbers + KV_CACHE_GIB * 1073.7,
        "worker, peak, MB": peaks["worker"],
    }
    publish("memory", "memory: GPT-2 (124 M parameters), float32, 16 rollouts of 34 tokens", rows, peaks)


def measure(settings: RunSettings) -> dict[str, float]:
    """Return the peak resident memory in MB of each actor's process after three iterations."""
    with cluster(), launch.service(settings, print) as clients:
        folder = RunFolder.open(settings.output_dir, "memory", settings.resolved(), "never")
        tracker = Tracker.start(settings.tracking, settings.output_dir, "memory")
        loop = controller(settings, clients, folder, tracker, silent_console(), StopRequest())
        for _ in range(3):
            loop.iterate()
        return {
            "learner": _peak("ray::Learner"),
            "worker": _peak("ray::RolloutWorker"),
            "learner, empty": _empty_process(),
        }


def _peak(title: str) -> float:
    for process in psutil.Process().children(recursive=True):
        if process.name().startswith(title[:15]) and title in " ".join(process.cmdline()):
            return _high_water_mark(process.pid)
    raise RuntimeError(f"no process {title}")


def _high_water_mark(pid: int | str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / MB


def _empty_process() -> float:
    """Start a process that has imported only Ray and the learner's imports."""
    import subprocess
    import sys

    code = (
        "import ray, torch, learner.learner, transformers.models.gpt2.modeling_gpt2;"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]) * 1024 / MB


if __name__ == "__main__":
    main()
