"""(a) Generated tokens per second of a worker and of bare `vllm.LLM.generate`: same prompts and settings."""

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from benchmarks.models import gpt2_tiny
from benchmarks.outcome import in_turns, publish, ratio
from contracts.rollout import Lease, Prompt, Rollout, Sampling
from rollout_workers.engines.engine_arguments import prepare_environment
from rollout_workers.engines.vllm_engine import sampling_parameters
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker

SETTINGS = RolloutSettings(max_concurrent=64)


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Prompts of a batch, and their tokens. Example: `TextBatch(count=64, prompt=16, new=64)`"""

    count: int
    prompt: int
    new: int

    def __str__(self) -> str:
        return f"{self.count} prompts of {self.prompt} tokens, {self.new} new ones"


def main() -> None:
    texts = TextBatch(count=64, prompt=16, new=64)
    model = str(gpt2_tiny())
    prepare_environment()
    worker = worker_side(model, SETTINGS, texts)
    rows, speeds = compared(worker, bare_side(model, SETTINGS, texts, _as_the_worker(SETTINGS)), rounds=9)
    publish("generation", f"generation: {texts}", rows, speeds)


def compared(
    worker: Callable[[], float], bare: Callable[[], float], rounds: int
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Measure two sides in turns; return the rows of a table, and all values."""
    speeds = in_turns({"vllm.LLM.generate": bare, "rollout worker": worker}, rounds, warm_up=2)
    share = ratio(speeds["rollout worker"], speeds["vllm.LLM.generate"])
    medians = {f"{name}, tokens/s": sorted(values)[rounds // 2] for name, values in speeds.items()}
    return {**medians, "worker / bare vLLM (at least 0.95)": share}, speeds


def bare_side(
    model: str, settings: RolloutSettings, texts: TextBatch, arguments: Mapping[str, Any]
) -> Callable[[], float]:
    """Start a `vllm.LLM`; return a function that writes a batch and returns tokens a second."""
    from vllm import LLM

    llm = LLM(
        model=model,
        max_num_seqs=settings.max_concurrent,
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        generation_config="vllm",
        seed=0,
        **arguments,
    )
    draw = random.Random(0)

    def tokens_per_s() -> float:
        requests = [{"prompt_token_ids": list(tokens)} for tokens in prompts(texts, draw)]
        parameters = [sampling_parameters(sampling(texts), seed) for seed in range(texts.count)]
        for drawing in parameters:
            drawing.detokenize = True  # the default: both sides deliver tokens, log-probabilities and text
        started = perf_counter()
        outputs = llm.generate(requests, parameters, use_tqdm=False)
        return sum(len(o.outputs[0].token_ids) for o in outputs) / (perf_counter() - started)

    return tokens_per_s


def worker_side(model: str, settings: RolloutSettings, texts: TextBatch) -> Callable[[], float]:
    """Start a rollout worker; return a function that writes a batch and returns tokens a second."""
    worker = RolloutWorker(model, model, None, "vllm", settings)
    worker.ready()
    draw, ids = random.Random(1), itertools.count()

    def tokens_per_s() -> float:
        leases = [
            Lease(next(ids), Prompt(str(i), ""), tokens, i, i, sampling(texts))
            for i, tokens in enumerate(prompts(texts, draw))
        ]
        started = perf_counter()
        worker.submit(leases)
        rollouts: list[Rollout] = []
        while len(rollouts) < texts.count:
            rollouts += worker.poll(1.0).rollouts
        return sum(rollout.num_generated for rollout in rollouts) / (perf_counter() - started)

    return tokens_per_s


def prompts(texts: TextBatch, draw: random.Random) -> list[tuple[int, ...]]:
    return [tuple(draw.randrange(1, 1000) for _ in range(texts.prompt)) for _ in range(texts.count)]


def sampling(texts: TextBatch) -> Sampling:
    """Return the sampling; its minimum length gives both sides the same number of tokens."""
    return Sampling(max_tokens=texts.new, min_tokens=texts.new)


def _as_the_worker(settings: RolloutSettings) -> dict[str, Any]:
    return {
        "dtype": "float32",
        "enforce_eager": True,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": False,
        "kv_cache_memory_bytes": round(settings.kv_cache_gib * 2**30),
    }


if __name__ == "__main__":
    main()
