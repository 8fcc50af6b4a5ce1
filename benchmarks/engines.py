"""Generated tokens per second of a worker with vLLM and of one with transformers, by the model's shape."""

import random
from pathlib import Path
from time import perf_counter

from benchmarks.models import gpt2_124m, gpt2_tiny
from benchmarks.outcome import in_turns, publish, ratio
from contracts.rollout import Lease, Prompt, Sampling
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker

NUM_PROMPTS, PROMPT_TOKENS, ROUNDS = 64, 16, 5
LENGTHS = {"64 tokens each": (64, 64), "16 to 64 tokens": (16, 64)}
SETTINGS = RolloutSettings(max_concurrent=64)


class Side:
    """One engine's worker, which is given batches of leases."""

    def __init__(self, model: Path, engine: str) -> None:
        self._worker = RolloutWorker(str(model), str(model), None, engine, SETTINGS)
        self._worker.ready()
        self._num_leases = 0

    def tokens_per_s(self, lengths: tuple[int, int], seed: int = 0) -> float:
        draw, leases = random.Random(seed), []
        for _ in range(NUM_PROMPTS):
            number = draw.randint(*lengths)
            tokens = tuple(draw.randrange(1, 1000) for _ in range(PROMPT_TOKENS))
            sampling = Sampling(max_tokens=number, min_tokens=number)
            prompt = Prompt(str(self._num_leases), "")
            leases.append(Lease(self._num_leases, prompt, tokens, len(leases), len(leases), sampling))
            self._num_leases += 1
        started = perf_counter()
        self._worker.submit(leases)
        rollouts = []
        while len(rollouts) < NUM_PROMPTS:
            rollouts += self._worker.poll(1.0).rollouts
        return sum(rollout.num_generated for rollout in rollouts) / (perf_counter() - started)


def main() -> None:
    shown: dict[str, float] = {}
    details: dict[str, list[float]] = {}
    for shape, model in (("tiny GPT", gpt2_tiny()), ("GPT-2's shape", gpt2_124m())):
        vllm, plain = Side(model, "vllm"), Side(model, "transformers")
        for name, lengths in LENGTHS.items():
            found = in_turns(
                {
                    "vllm": lambda of=vllm, n=lengths: of.tokens_per_s(n),
                    "transformers": lambda of=plain, n=lengths: of.tokens_per_s(n),
                },
                ROUNDS,
            )
            for engine, values in found.items():
                details[f"{shape}, {name}: {engine}, tokens/s"] = values
                shown[f"{shape}, {name}: {engine}, tokens/s"] = sorted(values)[ROUNDS // 2]
            shown[f"{shape}, {name}: transformers / vLLM"] = ratio(found["transformers"], found["vllm"])
    publish("engines", f"engines: {NUM_PROMPTS} prompts of {PROMPT_TOKENS} tokens", shown, details)


if __name__ == "__main__":
    main()
