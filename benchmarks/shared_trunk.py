"""(l) PPO's seconds and peak memory for 98 million parameters: all layers, and the last third.

The last third trains on a trunk shared with the reference.
"""

import json
import subprocess
import sys
from typing import Any

from benchmarks.learner_memory import high_water_mark_gib
from benchmarks.models import llama_100m
from benchmarks.outcome import publish, ratio

NUM_ROLLOUTS, PROMPT_TOKENS, RESPONSE_TOKENS, ROUNDS = 8, 64, 64, 3
SIDES: dict[str, float | None] = {"all layers": None, "the last third": 0.33}
PARTS = {"time/score_s": "scoring", "time/update_s": "update"}


def main(names: list[str]) -> None:
    if names:
        print(json.dumps(measure(names[0])))
        return
    llama_100m()  # made before the measurements
    times = {name: _in_a_process_of_its_own(name) for name in SIDES}
    whole, third = times.values()
    rows: dict[str, Any] = {
        f"{part}, {name}, s": sorted(times[name][key])[ROUNDS // 2]
        for key, part in PARTS.items()
        for name in SIDES
    }
    rows |= {
        f"{part}, share of all layers' time": ratio(third[key], whole[key]) for key, part in PARTS.items()
    }
    rows |= {f"peak memory, {name}, GiB": times[name]["peak_gib"][0] for name in SIDES}
    rows["peak memory, share of all layers'"] = ratio(third["peak_gib"], whole["peak_gib"])
    title = f"shared trunk: {NUM_ROLLOUTS} rollouts of {PROMPT_TOKENS} + {RESPONSE_TOKENS} tokens, 1 epoch"
    publish("shared_trunk", title, rows, times)


def measure(name: str) -> dict[str, list[float]]:
    """Measure the seconds of each iteration after the first, and the peak memory of all."""
    from learner.algorithms.ppo import PPO
    from learner.learner import Learner
    from learner.settings import LearnerSettings, ModelSettings

    learner = Learner(
        ModelSettings(path=str(llama_100m()), trainable_layers=SIDES[name]),
        PPO(num_epochs=1),
        LearnerSettings(device="cpu", num_threads=1),
        seed=0,
        iterations=1000,
    )
    rollouts = random_rollouts(NUM_ROLLOUTS)
    metrics = [learner.update(rollouts) for _ in range(1 + ROUNDS)][1:]
    return {key: [row[key] for row in metrics] for key in PARTS} | {"peak_gib": [high_water_mark_gib()]}


def random_rollouts(num: int) -> list[Any]:
    """Return random texts with random rewards."""
    import random

    from contracts.rollout import FinishReason, Prompt, Rollout, Turn

    draw = random.Random(0)

    def turn() -> Turn:
        tokens = [draw.randrange(1, 8192) for _ in range(PROMPT_TOKENS + RESPONSE_TOKENS)]
        logprobs, versions = (-9.0,) * RESPONSE_TOKENS, (0,) * RESPONSE_TOKENS
        prompt, answer = tuple(tokens[:PROMPT_TOKENS]), tuple(tokens[PROMPT_TOKENS:])
        return Turn(prompt, answer, "", logprobs, versions, draw.random())

    return [Rollout(i, i, Prompt(str(i), ""), (turn(),), FinishReason.LENGTH) for i in range(num)]


def _in_a_process_of_its_own(name: str) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "benchmarks.shared_trunk", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    times: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return times


if __name__ == "__main__":
    main(sys.argv[1:])
