"""Three seeds as adapters of one training service beside three services: seconds, processor time and memory.

    python -m benchmarks.studies.seeds_as_adapters [--steps N] [--engine transformers]

The client is a loop of reinforcement by the `tinker` SDK. One service trains the seeds at the same time, each on an
adapter of its own; the other arm starts a service for each seed, one after another. Memory is the proportional
set of a service's processes (shared pages are split between their users), in MB, at its peak.
"""

import argparse
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import tinker
from tinker import types

from benchmarks.outcome import OUT
from tests.models import SPECIAL
from tests.services.training.service.served import Server, client_of, serving

ROOT = OUT / "seeds_as_adapters"
SEEDS = (0, 1, 2)
RANK, PROMPTS, GROUP, NEW_TOKENS = 16, 4, 16, 16
FIRST = len(SPECIAL)  # the token of the number 0
MB = 1e6


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.studies.seeds_as_adapters")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--engine", default="transformers")
    options = parser.parse_args(argv)
    shutil.rmtree(ROOT, ignore_errors=True)
    model = make_model(ROOT / "model")
    together = measured(model, SEEDS, options.steps, options.engine)
    apart = [measured(model, (seed,), options.steps, options.engine) for seed in SEEDS]
    print("three adapters:", together)
    for one in apart:
        print("a service each:", one)
    seconds, processor = sum(one.seconds for one in apart), sum(one.processor_s for one in apart)
    memory = sum(one.memory_mb for one in apart)
    print(
        f"services / adapters: seconds {seconds / together.seconds:.2f}, "
        f"processor {processor / together.processor_s:.2f}, "
        f"memory at the same time {memory / together.memory_mb:.2f}"
    )
    alike = all(one.rewards[seed] == together.rewards[seed] for seed, one in zip(SEEDS, apart, strict=True))
    print("rewards of each seed are the same in both arms:", alike)
    return 0


@dataclass(frozen=True)
class Cost:
    """Costs of an arm, from the start of its service to the end of its last loop."""

    seconds: float
    processor_s: float
    memory_mb: float
    rewards: dict[int, list[float]]


def measured(model: Path, seeds: Sequence[int], steps: int, engine: str) -> Cost:
    began = time.monotonic()
    folder = ROOT / f"service-{'-'.join(map(str, seeds))}"
    with serving(model, folder, "--engine", engine) as server:
        assert server.process is not None
        watch = Watch(server.process.pid)
        with ThreadPoolExecutor(len(seeds)) as threads:
            rewards = list(threads.map(lambda seed: learned(server, seed, steps), seeds))
        seconds = time.monotonic() - began
        watch.stop()
    return Cost(seconds, watch.processor_s, watch.peak_mb, dict(zip(seeds, rewards, strict=True)))


class Watch:
    """A thread that samples the memory and processor time of a process and of those below it."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self.peak_mb = self.processor_s = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            last = self._ends.wait(1.0)
            processes = [self._root, *self._root.children(recursive=True)]
            self.peak_mb = max(self.peak_mb, sum(one.memory_full_info().pss for one in processes) / MB)
            self.processor_s = sum(sum(one.cpu_times()[:2]) for one in processes)
            if last:
                return


def learned(server: Server, seed: int, steps: int) -> list[float]:
    """Train an adapter of the seed to write even numbers; return the mean reward of each step."""
    client = client_of(server).create_lora_training_client(str(server.model), rank=RANK, seed=seed).result()
    prompts = [types.ModelInput.from_ints([FIRST + number]) for number in range(PROMPTS)]
    rewards = []
    for step in range(steps):
        sampler = client.save_weights_and_get_sampling_client().result()
        params = types.SamplingParams(max_tokens=NEW_TOKENS, seed=1000 * seed + step)
        futures = [sampler.sample(prompt, GROUP, params) for prompt in prompts]
        answers = [
            (prompt, answer)
            for prompt, future in zip(prompts, futures, strict=True)
            for answer in future.result().sequences
        ]
        scores = [is_even(token) for _, answer in answers for token in answer.tokens]
        rewards.append(sum(scores) / len(scores))
        data = [datum(prompt, answer, rewards[-1]) for prompt, answer in answers]
        client.forward_backward(data, "importance_sampling").result()
        client.optim_step(types.AdamParams(learning_rate=3e-3)).result()
    return rewards


def is_even(token: int) -> float:
    return float(token >= FIRST and (token - FIRST) % 2 == 0)


def datum(prompt: types.ModelInput, answer: tinker.SampledSequence, baseline: float) -> types.Datum:
    before, tokens = prompt.length - 1, list(answer.tokens)
    return types.Datum(
        model_input=prompt.append(types.EncodedTextChunk(tokens=tokens[:-1])),
        loss_fn_inputs={
            "target_tokens": [0] * before + tokens,
            "logprobs": [0.0] * before + list(answer.logprobs or []),
            "advantages": [0.0] * before + [is_even(token) - baseline for token in tokens],
        },
    )


def make_model(folder: Path) -> Path:
    """Write a random Llama of 50 million weights (200 MB in float32) with the tests' tokenizer of numbers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    from tests.models import make_tiny_model

    tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(ROOT / "tiny"), trust_remote_code=False)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=16,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
