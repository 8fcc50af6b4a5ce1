"""Compare the model of memory with the peaks of six small learners on a CPU, in one process and in two.

The allocator gives each tensor separate memory and frees it at once, like PyTorch's on a GPU. A run's
allocator keeps freed memory, so its processes hold more.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.learner_memory import high_water_mark_gib
from benchmarks.models import made
from benchmarks.outcome import publish
from contracts.settings import build
from learner.distributed.rendezvous import Rendezvous
from services.config.settings import RunSettings
from services.models.files import read_model
from services.models.shape import shape_of
from services.training.preflight.capacity.gpu_memory import Texts, learner_load
from services.training.preflight.capacity.memory_model import GIB, MemoryNeeds, share_and_base

# name: (shape, algorithm, ranks, options of the model)
RUNS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "gpt2 ppo": ("gpt2", "ppo", 1, {}),
    "gpt2 grpo": ("gpt2", "grpo", 1, {}),
    "qwen2 ppo": ("qwen2", "ppo", 1, {}),
    "qwen2 lora": ("qwen2", "ppo", 1, {"adapter": {"kind": "lora"}}),
    "qwen2 checkpointing": ("qwen2", "grpo", 1, {"gradient_checkpointing": True}),
    "qwen2 ppo, two ranks": ("qwen2", "ppo", 2, {}),
}
EMPTY = " on a tiny model"  # the same run, whose memory is that of Python and libraries
GIVES_BACK = "glibc.malloc.mmap_threshold=65536"
NUM_ROLLOUTS, PROMPT, RESPONSE, VOCABULARY = 32, 64, 64, 4096
MINIBATCH = 16  # rollouts: the second step has moments, too
BUDGET = MINIBATCH // 2 * (PROMPT + RESPONSE)  # the second half's activations meet the first half's gradients


def main(words: list[str]) -> None:
    if words:
        print(measure(words[0], int(words[1]), words[2]))
        return
    rows, details = {}, {}
    for name in RUNS:
        measured = max(_told(name)) - min(_told(f"{name}{EMPTY}"))
        predicted = predicted_gib(name)
        details[name] = {"measured": measured, "predicted": predicted}
        rows[name] = (
            f"{predicted:.2f} GiB predicted, {measured:.2f} measured: {predicted / measured - 1:+.0%}"
        )
    publish("memory_model", "peak of a learner's process, beside libraries", rows, details)


def settings_of(name: str) -> RunSettings:
    shape, algorithm, ranks, model = RUNS[name]
    learner = {"device": "cpu", "token_budget": BUDGET, "num_threads": 1, "num_processes": ranks}
    steps = {"name": algorithm, "num_epochs": 1, "minibatch_size": MINIBATCH}
    parts = {"algorithm": steps, "task": "increasing_numbers", "learner": learner}
    return build(RunSettings, {**parts, "model": {"path": str(model_of(shape)), **model}}, where="")


def model_of(shape: str) -> Path:
    """Make a model of some 12 million parameters; "tiny": of 40,000, which take next to nothing."""
    from transformers import GPT2Config, Qwen2Config

    ends = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": VOCABULARY}
    if shape == "tiny":
        ends["vocab_size"] = 1000
        return made("tiny-memory", GPT2Config(n_embd=32, n_layer=1, n_head=1, n_positions=256, **ends))
    if shape == "gpt2":
        return made("gpt2-memory", GPT2Config(n_embd=384, n_layer=6, n_head=6, n_positions=256, **ends))
    sizes = {"hidden_size": 384, "intermediate_size": 1152, "num_hidden_layers": 6}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256}
    return made("qwen2-memory", Qwen2Config(**sizes, **heads, **ends, tie_word_embeddings=True))


def predicted_gib(name: str) -> float:
    """Return the model's sum for one process."""
    run = settings_of(name)
    files = read_model(run.model)
    shape = shape_of(files)
    assert files.num_parameters is not None and shape is not None
    share = share_and_base(run.model, files, files.num_parameters)
    needs = MemoryNeeds(run.model, run.algorithm, run.learner, run.rollout, files.num_parameters, *share)
    return learner_load(needs, shape, Texts(files.window, NUM_ROLLOUTS), 4, on_cpu=True).peak / GIB


def measure(name: str, rank: int, meeting: str) -> float:
    """Return this process's peak in GiB after an update; on a tiny model, what it then holds.

    The peak of the libraries' import is over by then, and its memory used again.
    """
    import psutil

    from learner.learner import Learner

    is_empty = name.endswith(EMPTY)
    run = settings_of(name.removesuffix(EMPTY))
    model = run.model.model_copy(update={"path": str(model_of("tiny"))}) if is_empty else run.model
    ranks = run.learner.num_processes
    rendezvous = Rendezvous(rank, ranks, f"file://{meeting}") if ranks > 1 else None
    learner = Learner(model, run.algorithm, run.learner, seed=0, iterations=2, rendezvous=rendezvous)
    learner.update(_rollouts(*((16, 999) if is_empty else (NUM_ROLLOUTS, VOCABULARY))))
    return float(psutil.Process().memory_info().rss / GIB) if is_empty else high_water_mark_gib()


def _rollouts(count: int, vocabulary: int) -> list[Any]:
    """Return random texts of one length with random rewards, in groups of eight."""
    import random

    from contracts.rollout import FinishReason, Prompt, Rollout, Turn

    draw = random.Random(0)

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(draw.randrange(1, vocabulary) for _ in range(number))

    def turn() -> Turn:
        logprobs, versions = (-9.0,) * RESPONSE, (0,) * RESPONSE
        return Turn(tokens(PROMPT), tokens(RESPONSE), "", logprobs, versions, draw.random())

    return [
        Rollout(i, i // 8, Prompt(str(i // 8), ""), (turn(),), FinishReason.LENGTH, {}) for i in range(count)
    ]


def _told(name: str) -> list[float]:
    """Return all ranks' measurements, each from a separate process."""
    ranks, environment = RUNS[name.removesuffix(EMPTY)][2], {**os.environ, "GLIBC_TUNABLES": GIVES_BACK}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.memory_model", name]
        started = [
            subprocess.Popen(
                [*command, str(rank), f"{folder}/meeting"], env=environment, stdout=subprocess.PIPE, text=True
            )
            for rank in range(ranks)
        ]
        outputs = [process.communicate()[0] for process in started]
    return [float(json.loads(output.splitlines()[-1])) for output in outputs]


if __name__ == "__main__":
    main(sys.argv[1:])
