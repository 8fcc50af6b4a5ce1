"""Generated tokens per second of a vLLM worker and a transformers worker, by the model's shape.

`rollout.engine=auto` follows these figures on a CPU. Each worker has its own process, because vLLM binds the
threads of its process.
"""

import itertools
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

from benchmarks.models import gpt2_124m, gpt2_tiny, gpt2_tiny_50k, made
from benchmarks.outcome import in_turns, publish, ratio
from contracts.rollout import Lease, Prompt, Rollout, Sampling
from rollout_workers.engines.engine_arguments import prepare_environment
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker

NUM_PROMPTS, PROMPT_TOKENS, ROUNDS = 64, 16, 3
LENGTHS = {"48 tokens each": (48, 48), "8 to 96 tokens": (8, 96)}
SETTINGS = RolloutSettings(max_concurrent=64)

_worker: RolloutWorker
_ids = itertools.count()


def main() -> None:
    shown: dict[str, float] = {}
    details: dict[str, list[float]] = {}
    for shape, model in models().items():
        for name, speeds in beside_each_other(model).items():
            for engine, values in speeds.items():
                details[f"{shape}, {name}: {engine}, tokens/s"] = values
                shown[f"{shape}, {name}: {engine}, tokens/s"] = sorted(values)[ROUNDS // 2]
            shown[f"{shape}, {name}: transformers / vLLM"] = ratio(speeds["transformers"], speeds["vllm"])
    publish("engines", f"engines: {NUM_PROMPTS} prompts of {PROMPT_TOKENS} tokens", shown, details)


def models() -> dict[str, Path]:
    """Return GPTs of rising size, by shape and number of parameters."""
    from transformers import GPT2Config

    def gpt(layers: int, width: int, num_words: int) -> Path:
        config = GPT2Config(
            vocab_size=num_words,
            n_positions=128,
            n_embd=width,
            n_layer=layers,
            n_head=width // 64,
            bos_token_id=0,
            eos_token_id=0,
        )
        return made(f"gpt2-{layers}x{width}", config)

    return {
        "4 × 128, 1,000 words, 0.9 million": gpt2_tiny(),
        "4 × 128, 50,257 words, 7 million": gpt2_tiny_50k(),
        "6 × 384, 4,000 words, 12 million": gpt(6, 384, 4000),
        "8 × 512, 4,000 words, 27 million": gpt(8, 512, 4000),
        "12 × 768, 50,257 words, 124 million": gpt2_124m(),
    }


def beside_each_other(model: Path) -> dict[str, dict[str, list[float]]]:
    """Return each engine's tokens a second, round by round, for each kind of LENGTHS."""
    spawn = get_context("spawn")
    with (
        ProcessPoolExecutor(1, spawn, start, (str(model), "vllm")) as vllm,
        ProcessPoolExecutor(1, spawn, start, (str(model), "transformers")) as plain,
    ):
        sides = {"vllm": vllm, "transformers": plain}
        return {name: in_turns(_writing(sides, lengths), ROUNDS) for name, lengths in LENGTHS.items()}


def _writing(
    sides: Mapping[str, ProcessPoolExecutor], lengths: tuple[int, int]
) -> dict[str, Callable[[], float]]:
    return {name: lambda of=of: of.submit(tokens_per_s, lengths).result() for name, of in sides.items()}


def start(model: str, engine: str) -> None:
    """Start this process's worker."""
    global _worker
    if engine == "vllm":
        prepare_environment()
    _worker = RolloutWorker(model, model, None, engine, SETTINGS)
    _worker.ready()


def tokens_per_s(lengths: tuple[int, int]) -> float:
    """Let this process's worker write a batch; return its tokens a second."""
    draw, leases = random.Random(0), []
    for seed in range(NUM_PROMPTS):
        number, sampling = next(_ids), Sampling(max_tokens=draw.randint(*lengths))
        tokens = tuple(draw.randrange(1, 1000) for _ in range(PROMPT_TOKENS))
        leases.append(Lease(number, Prompt(str(number), ""), tokens, number, seed, sampling))
    started = perf_counter()
    _worker.submit(leases)
    rollouts: list[Rollout] = []
    while len(rollouts) < NUM_PROMPTS:
        rollouts += _worker.poll(1.0).rollouts
    return sum(rollout.num_generated for rollout in rollouts) / (perf_counter() - started)


if __name__ == "__main__":
    main()
