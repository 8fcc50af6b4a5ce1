"""(j) Peak memory of an update on 10,240 response tokens with a vocabulary of 50,257: PPO, NLPO, TRPO."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.models import gpt2_tiny_50k
from benchmarks.outcome import publish

GIB = 2**30
NUM_ROLLOUTS, PROMPT_TOKENS, RESPONSE_TOKENS = 160, 16, 64
LIMITS_GIB = {"ppo": 2.0, "nlpo": 2.0, "trpo": 3.0}


def main(names: list[str]) -> None:
    if names:
        print(json.dumps(measure(*names)))
        return
    gpt2_tiny_50k()  # made before the measurements
    peaks = {name: _in_a_process_of_its_own(name) for name in ("nothing", *LIMITS_GIB)}
    rows: dict[str, Any] = {"libraries and models alone, GiB": peaks["nothing"]["peak_gib"]}
    for name, limit in LIMITS_GIB.items():
        rows[f"{name}, GiB (at most {limit:g})"] = peaks[name]["peak_gib"]
        rows[f"{name}, seconds scoring + updating"] = (
            f"{peaks[name]['time/score_s']:.1f} + {peaks[name]['time/update_s']:.1f}"
        )
    title = f"memory of an update: {NUM_ROLLOUTS * RESPONSE_TOKENS:,} response tokens, 50,257 words"
    publish("learner_memory", title, rows, peaks)


def measure(name: str) -> dict[str, float]:
    """Measure an iteration with the defaults except two epochs; "nothing" only makes PPO's learner."""
    from contracts.components import find
    from learner.algorithms import ALGORITHMS
    from learner.learner import Learner
    from learner.settings import LearnerSettings, ModelSettings

    algorithm = find("algorithm", "ppo" if name == "nothing" else name, ALGORITHMS)(num_epochs=2)
    learner = Learner(
        ModelSettings(path=str(gpt2_tiny_50k())),
        algorithm,
        LearnerSettings(device="cpu", num_threads=1),
        seed=0,
        iterations=1,
    )
    metrics = {} if name == "nothing" else learner.update(_rollouts())
    return {"peak_gib": high_water_mark_gib(), **metrics}


def _rollouts() -> list[Any]:
    """Return random texts with random rewards."""
    import random

    from contracts.rollout import FinishReason, Prompt, Rollout, Turn

    draw = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(1, 50_257) for _ in range(count))

    def turn() -> Turn:
        logprobs, versions = (-10.8,) * RESPONSE_TOKENS, (0,) * RESPONSE_TOKENS
        return Turn(tokens(PROMPT_TOKENS), tokens(RESPONSE_TOKENS), "", logprobs, versions, draw.random())

    return [
        Rollout(i, i, Prompt(str(i), ""), (turn(),), FinishReason.LENGTH, {}) for i in range(NUM_ROLLOUTS)
    ]


def high_water_mark_gib() -> float:
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 / GIB


def _in_a_process_of_its_own(name: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.learner_memory", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    peaks: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return peaks


if __name__ == "__main__":
    main(sys.argv[1:])
