"""Seconds in which a worker's engine frees its GPU's memory and takes it again, and the freed bytes."""

import statistics
from typing import Any

import torch

from benchmarks.gpu.lines import record
from benchmarks.gpu.machine import model, on_gpu
from benchmarks.outcome import seconds
from rollout_workers.engines.vllm_engine import VLLMEngine
from rollout_workers.settings import RolloutSettings

ROUNDS, TEXT = 5, tuple(range(1, 33))


def main() -> None:
    settings = RolloutSettings(
        sleep=True,
        gpu_memory_utilization=0.8,
        kv_cache_gib=0.25,
        max_concurrent=64,
        engine_args={"enforce_eager": True} if on_gpu() else {},  # a quick start; graphs do not sleep
    )
    engine = VLLMEngine(str(model()), str(model()), None, settings)
    if not on_gpu():
        rows: dict[str, Any] = {"sleep": "vLLM's engine on a CPU has no sleep"}
    else:
        rows = measured(engine)
    record("sleeping", rows)


def measured(engine: VLLMEngine) -> dict[str, Any]:
    before = engine.logprobs([TEXT])[0]
    slept, woken, freed = [], [], []
    for _ in range(ROUNDS):
        free = free_bytes()
        slept.append(seconds(engine.sleep))
        freed.append(free_bytes() - free)
        woken.append(seconds(engine._wake))
    if engine.logprobs([TEXT])[0] != before:
        raise SystemExit("the engine's log-probabilities are others after sleep")
    return {
        "sleep, s": statistics.median(slept),
        "wake, s": statistics.median(woken),
        "freed, GB": statistics.median(freed) / 1e9,
    }


def free_bytes() -> int:
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])


if __name__ == "__main__":
    main()
