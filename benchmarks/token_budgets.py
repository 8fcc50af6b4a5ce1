"""Memory and time of an update on a CPU by `learner.token_budget`: a Llama of 135 million weights, GRPO.

The shape is SmolLM2-135M's, with random weights, because memory and time do not depend on weights. Each
budget has a separate process. A small first update makes the optimiser's moments before the second.
"""

import json
import random
import subprocess
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks.learner_memory import high_water_mark_gib
from benchmarks.models import made
from benchmarks.outcome import publish
from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from contracts.settings import build
from services.config.settings import RunSettings
from services.models.files import read_model
from services.models.shape import shape_of
from services.training.preflight.capacity.memory_model import (
    GIB,
    LEARNER_PROCESS,
    MemoryNeeds,
    cpu_pass_bytes,
    most_tokens,
)

BUDGETS = (4096, 2048, 1024, 512)
NUM_ROLLOUTS, GROUP, PROMPT, RESPONSE, VOCABULARY = 24, 8, 40, 128, 49_152


def main(words: list[str]) -> None:
    if words:
        print(json.dumps(measure(int(words[0]))))
        return
    smollm2_shape()
    rows: dict[str, Any] = {}
    details = {}
    for budget in BUDGETS:
        command = [sys.executable, "-m", "benchmarks.token_budgets", str(budget)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        costs = json.loads(done.stdout.splitlines()[-1]) | {"predicted_gib": predicted_gib(budget)}
        details[str(budget)] = costs
        rows[f"{budget:,} tokens"] = (
            f"{costs['peak_gib']:.1f} GiB, {costs['predicted_gib']:.1f} predicted; "
            f"{costs['seconds']:.0f} s, {costs['cpu_seconds']:.0f} s of the cores"
        )
    title = f"an update of 135 million weights: {NUM_ROLLOUTS} rollouts of {PROMPT} + {RESPONSE} tokens"
    publish("token_budgets", title, rows, details)


def smollm2_shape() -> Path:
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    return made("smollm2-135m", config)


def settings_of(budget: int) -> RunSettings:
    learner = {"device": "cpu", "token_budget": budget}
    parts = {"algorithm": {"name": "grpo"}, "task": "increasing_numbers", "learner": learner}
    return build(RunSettings, {**parts, "model": {"path": str(smollm2_shape())}}, where="")


def predicted_gib(budget: int) -> float:
    """Return the model's sum for the learner's process."""
    run = settings_of(budget)
    files = read_model(run.model)
    shape = shape_of(files)
    assert files.num_parameters is not None and shape is not None
    needs = MemoryNeeds(run.model, run.algorithm, run.learner, run.rollout, files.num_parameters)
    tokens = most_tokens(budget, PROMPT + RESPONSE, NUM_ROLLOUTS)
    passes = cpu_pass_bytes(needs, shape, tokens, bytes_each=4)
    return (LEARNER_PROCESS + sum(needs.of_learner().values()) + sum(passes.values())) / GIB


def measure(budget: int) -> dict[str, float]:
    from learner.learner import Learner

    run = settings_of(budget)
    learner = Learner(run.model, run.algorithm, run.learner, seed=0, iterations=2)
    learner.update(rollouts(GROUP, response=8))
    loaded = high_water_mark_gib()
    began, cpu_began = perf_counter(), process_time()
    metrics = learner.update(rollouts(NUM_ROLLOUTS, response=RESPONSE))
    return {
        "seconds": perf_counter() - began,
        "cpu_seconds": process_time() - cpu_began,
        "score_s": metrics["time/score_s"],
        "update_s": metrics["time/update_s"],
        "before_gib": loaded,
        "peak_gib": high_water_mark_gib(),
    }


def rollouts(count: int, response: int) -> list[Rollout]:
    """Return random texts with random rewards, in groups that share a prompt."""
    draw = random.Random(0)

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, VOCABULARY) for _ in range(number))

    prompts = [tokens(PROMPT) for _ in range(count // GROUP)]

    def turn(prompt: int) -> Turn:
        logprobs, versions = (-10.8,) * response, (0,) * response
        return Turn(prompts[prompt], tokens(response), "", logprobs, versions, draw.random())

    return [
        Rollout(i, i // GROUP, Prompt(str(i // GROUP), ""), (turn(i // GROUP),), FinishReason.LENGTH, {})
        for i in range(count)
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
