"""Generated tokens per second of a worker and of bare `vllm.LLM.generate`, in turns.

Each has 0.4 of the GPU and a separate process, because two engines in one process share vLLM's state and
break CUDA graphs. Bare vLLM has a plain script's environment: its newer model runner, an engine in another
process, and steps that run ahead.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import psutil

from benchmarks.generation import TextBatch, bare_side, compared, worker_side
from benchmarks.gpu.lines import record
from benchmarks.gpu.machine import model, on_gpu
from rollout_workers.settings import RolloutSettings

SETTINGS = RolloutSettings(max_concurrent=512, gpu_memory_utilization=0.4, kv_cache_gib=0.25)
ON_GPU = {"dtype": "bfloat16", "gpu_memory_utilization": 0.4}
ON_CPU = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**28}


def main() -> None:
    texts = TextBatch(count=512, prompt=128, new=256) if on_gpu() else TextBatch(count=8, prompt=16, new=8)
    folder = str(model())
    # Before the worker sets its environment. The worker counts free memory after bare vLLM takes its share.
    with in_process(folder, texts, ON_GPU if on_gpu() else ON_CPU) as bare:
        rows, _ = compared(worker_side(folder, SETTINGS, texts), bare, rounds=5)
    record("generation", {"texts": str(texts), **rows})


@contextmanager
def in_process(folder: str, texts: TextBatch, arguments: Mapping[str, Any]) -> Iterator[Callable[[], float]]:
    """Start bare vLLM in a separate process; yield a function that measures one round."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, folder, texts, dict(arguments)))
    process.start()
    there.close()  # so that a dead process raises EOFError here
    here.recv()

    def tokens_per_s() -> float:
        here.send(True)
        return float(here.recv())

    try:
        yield tokens_per_s
    finally:
        # A normal end would wait for vLLM's engine, which ends later.
        for member in [*psutil.Process(process.pid).children(recursive=True), process]:
            member.kill()


def serve(connection: Connection, folder: str, texts: TextBatch, arguments: Mapping[str, Any]) -> None:
    """Measure a round for each message, until this process is killed."""
    tokens_per_s = bare_side(folder, SETTINGS, texts, arguments)
    connection.send(True)
    while connection.recv():
        connection.send(tokens_per_s())


if __name__ == "__main__":
    main()
