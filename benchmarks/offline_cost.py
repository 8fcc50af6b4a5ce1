"""(k) Trained tokens per second and peak memory of A-LoL and supervised training on the same batches.

The reference's log-probabilities and values come with the data, so no reference is in memory.
"""

import json
import random
import subprocess
import sys
from typing import Any

from benchmarks.learner_memory import high_water_mark_gib
from benchmarks.models import gpt2_124m, gpt2_tiny
from benchmarks.outcome import in_turns, publish, ratio
from contracts.rollout import FinishReason, Prompt, Rollout, Turn

ROLLOUTS, PROMPT_TOKENS, NEW_TOKENS, ROUNDS = 64, 16, 48, 9
NAMES = ("supervised", "a_lol")


def main(names: list[str]) -> None:
    if names:
        print(json.dumps(high_water_mark_after(*names)))
        return
    learners = {name: learner(name, str(gpt2_tiny())) for name in NAMES}
    batch = rollouts()

    def side(name: str) -> float:
        metrics = learners[name].update(batch)
        return float(metrics["tokens/trained"] / (metrics["time/score_s"] + metrics["time/update_s"]))

    speeds: dict[str, Any] = dict(in_turns({name: lambda name=name: side(name) for name in NAMES}, ROUNDS))
    rows: dict[str, Any] = {f"{name}, tokens/s": sorted(speeds[name])[ROUNDS // 2] for name in NAMES}
    rows["a_lol / supervised (at least 0.9)"] = ratio(speeds["a_lol"], speeds["supervised"])
    gpt2_124m()  # made before the measurements
    peaks = {name: in_a_process_of_its_own(name) for name in NAMES}
    rows |= {f"{name}, GPT-2's shape, peak GiB": peaks[name] for name in NAMES}
    rows["a_lol's peak / supervised's (at most 1.1)"] = peaks["a_lol"] / peaks["supervised"]
    publish("offline_cost", f"learning from data: {ROLLOUTS} responses", rows, speeds | {"peak_gib": peaks})


def learner(name: str, path: str) -> Any:
    from contracts.components import find
    from learner.algorithms import ALGORITHMS
    from learner.learner import Learner
    from learner.settings import LearnerSettings, ModelSettings

    algorithm = find("algorithm", name, ALGORITHMS)(minibatch_size=None, learning_rate=1e-5)
    settings = LearnerSettings(device="cpu")
    model = ModelSettings(path=path, dropout=False)
    return Learner(model, algorithm, settings, seed=0, iterations=1000)


def rollouts() -> list[Rollout]:
    """Return random texts with an annotated data set's rewards, values and log-probabilities."""
    draw = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(1, 1000) for _ in range(count))

    def turn() -> Turn:
        logprobs, versions = (-6.9,) * NEW_TOKENS, (0,) * NEW_TOKENS
        return Turn(tokens(PROMPT_TOKENS), tokens(NEW_TOKENS), "", logprobs, versions, 0.5 + draw.random())

    return [
        Rollout(i, i, Prompt(str(i), ""), (turn(),), FinishReason.LENGTH, baseline=0.25)
        for i in range(ROLLOUTS)
    ]


def high_water_mark_after(name: str) -> float:
    trained, batch = learner(name, str(gpt2_124m())), rollouts()
    for _ in range(2):
        trained.update(batch)
    return high_water_mark_gib()


def in_a_process_of_its_own(name: str) -> float:
    command = [sys.executable, "-m", "benchmarks.offline_cost", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main(sys.argv[1:])
