"""Generated tokens per second of a worker and of bare `vllm.LLM.generate`, whose steps may run ahead.

Both are in this process, one after the other in each round, each with 0.4 of the GPU. So they share vLLM's
environment: the older model runner, and no process of the engine's own.
"""

from benchmarks.generation import TextBatch, beside_bare_vllm
from benchmarks.gpu.machine import gpu_name, model, on_gpu
from benchmarks.outcome import publish
from rollout_workers.settings import RolloutSettings


def main() -> None:
    texts = TextBatch(count=256, prompt=128, new=256) if on_gpu() else TextBatch(count=8, prompt=16, new=8)
    settings = RolloutSettings(max_concurrent=256, gpu_memory_utilization=0.4, kv_cache_gib=0.25)
    # On a GPU the other side has what a plain script gives it: graphs, compilation, steps that run ahead.
    plain = {"dtype": "bfloat16", "gpu_memory_utilization": 0.4} if on_gpu() else None
    rows, found = beside_bare_vllm(str(model()), settings, texts, plain, rounds=3)
    publish("gpu_generation", f"generation: {texts}, {gpu_name()}", rows, found)


if __name__ == "__main__":
    main()
