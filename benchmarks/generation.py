"""(a) Generated tokens per second of a worker and of bare `vllm.LLM.generate`: same prompts and settings."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from benchmarks.models import gpt2_tiny
from benchmarks.outcome import in_turns, publish, ratio
from contracts.rollout import Lease, Prompt, Sampling
from rollout_workers.engines.engine_arguments import prepare_environment
from rollout_workers.engines.vllm_engine import sampling_parameters
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker

SETTINGS = RolloutSettings(max_concurrent=64)


@dataclass(frozen=True, slots=True)
class TextBatch:
    """TextBatch of a batch, and their tokens. Example: `TextBatch(count=64, prompt=16, new=64)`"""

    count: int
    prompt: int
    new: int

    def __str__(self) -> str:
        return f"{self.count} prompts of {self.prompt} tokens, {self.new} new ones"


def main() -> None:
    texts = TextBatch(count=64, prompt=16, new=64)
    rows, found = beside_bare_vllm(str(gpt2_tiny()), SETTINGS, texts, None, rounds=9)
    publish("generation", f"generation: {texts}", rows, found)


def beside_bare_vllm(
    model: str, settings: RolloutSettings, texts: TextBatch, plain: Mapping[str, Any] | None, rounds: int
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the rows of a table, and all values.

    Args:
        plain: arguments of the bare `vllm.LLM`; None: those of the worker's engine.
    """
    prepare_environment(on_gpu=torch.cuda.is_available())
    from vllm import LLM

    worker = RolloutWorker(model, model, None, "vllm", settings)
    worker.ready()
    llm = LLM(
        model=model,
        max_num_seqs=settings.max_concurrent,
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        generation_config="vllm",
        seed=0,
        **(_as_the_worker(settings) if plain is None else plain),
    )
    # The minimum keeps responses from ending early: both sides generate the same number of tokens.
    sampling = Sampling(max_tokens=texts.new, min_tokens=texts.new)
    draw = random.Random(0)
    next_id = 0

    def prompts() -> list[tuple[int, ...]]:
        return [tuple(draw.randrange(1, 1000) for _ in range(texts.prompt)) for _ in range(texts.count)]

    def bare() -> float:
        asked = [{"prompt_token_ids": list(tokens)} for tokens in prompts()]
        parameters = [sampling_parameters(sampling, seed) for seed in range(texts.count)]
        for each in parameters:
            each.detokenize = True  # the default: both sides deliver tokens, log-probabilities and text
        started = perf_counter()
        outputs = llm.generate(asked, parameters, use_tqdm=False)
        return sum(len(o.outputs[0].token_ids) for o in outputs) / (perf_counter() - started)

    def ours() -> float:
        nonlocal next_id
        leases = [
            Lease(next_id + i, Prompt(str(i), ""), tokens, i, i, sampling)
            for i, tokens in enumerate(prompts())
        ]
        next_id += texts.count
        started = perf_counter()
        worker.submit(leases)
        rollouts = []
        while len(rollouts) < texts.count:
            rollouts += worker.poll(1.0).rollouts
        return sum(rollout.num_generated for rollout in rollouts) / (perf_counter() - started)

    found = in_turns({"vllm.LLM.generate": bare, "rollout worker": ours}, rounds, warm_up=2)
    share = ratio(found["rollout worker"], found["vllm.LLM.generate"])
    medians = {f"{name}, tokens/s": sorted(values)[rounds // 2] for name, values in found.items()}
    return {**medians, "worker / bare vLLM (at least 0.95)": share}, found


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
