"""Seconds of a push by each transport for these GPUs, beside a plain copy's.

Objects work everywhere, ipc if learner and worker share the GPU, nccl with two GPUs or more, gloo without
GPUs. The plain copy takes the same path: within a GPU, between two GPUs, from the host's memory to a GPU, or
within the host's memory.
"""

import statistics
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.lines import record
from benchmarks.gpu.machine import model, on_gpu
from benchmarks.outcome import ratio, seconds
from benchmarks.transports import beside_a_copy
from services.cluster.ray_cluster import cluster

ROUNDS = 5
EAGER = "rollout.engine_args={enforce_eager: true}"  # a quick start; a push is the same
SHARED = ("cluster=one_gpu", EAGER)
WHOLE = ("cluster.learner_gpus=1", "cluster.worker_gpus=1", EAGER)


def main() -> None:
    chosen = ways(torch.cuda.device_count() if on_gpu() else 0)
    with cluster():
        for way, options in chosen.items():
            num_bytes, spent = beside_a_copy(
                model(), (f"learner.transport={way}", *options), copier(way), rounds=ROUNDS
            )
            rows: dict[str, Any] = {
                f"{way}: push, s": statistics.median(spent["push"]),
                f"{way}: the bytes alone, s": statistics.median(spent["copy"]),
                f"{way}: push / bytes alone": ratio(spent["push"], spent["copy"]),
                "MB": num_bytes / 1e6,
            }
            record("pushes", rows)
    if "nccl" not in chosen:
        record("pushes", {"nccl": "not run: it needs two GPUs"})


def ways(num_gpus: int) -> dict[str, tuple[str, ...]]:
    """Return the transports for a number of GPUs, each with its options."""
    if not num_gpus:
        return {"objects": (), "gloo": ()}
    alone = {"objects": SHARED, "ipc": SHARED}
    return alone if num_gpus == 1 else {**alone, "nccl": WHOLE}


def copier(way: str) -> Callable[[int], Callable[[], float]]:
    """Return a function that makes the timed copy of a number of bytes."""

    def made(num_bytes: int) -> Callable[[], float]:
        last = torch.cuda.device_count() - 1
        source_on, target_on = {
            "ipc": ("cuda:0", "cuda:0"),
            "nccl": ("cuda:0", f"cuda:{last}"),
            "objects": ("cpu", "cuda:0" if on_gpu() else "cpu"),
        }.get(way, ("cpu", "cpu"))
        source = torch.ones(num_bytes, dtype=torch.uint8, device=source_on)
        target = torch.ones(num_bytes, dtype=torch.uint8, device=target_on)

        def copy() -> None:
            target.copy_(source)
            if on_gpu():
                for gpu in range(last + 1):
                    torch.cuda.synchronize(gpu)

        return lambda: seconds(copy)

    return made


if __name__ == "__main__":
    main()
