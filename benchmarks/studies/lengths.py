"""An update on responses of many lengths at GPT-2's width, in this tree and another.

`python -m benchmarks.studies.lengths TREE [ALGORITHM …]`: TREE is a checkout of another commit, such as `git worktree
add` makes. Each side is a process with one thread, which runs this file on its own tree's learner.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GROUPS, GROUP_SIZE, PROMPT_TOKENS, LENGTHS, ROUNDS = 3, 8, 16, (16, 256), 2
VOCABULARY, UNIFORM = 50_257, -10.825
HERE = Path(__file__).parents[2]


class Side:
    """One tree's learner in a process of its own; each turn is one update, its scores included."""

    def __init__(self, tree: Path, algorithm: str, model: Path) -> None:
        # -P: this file's folder stays off the path, so that all imports come from the tree
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--side", algorithm, model],
            env=os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.peak_mb = 0.0
        self.last: dict[str, float] = {}

    def __call__(self) -> float:
        """Make an update; return its seconds of processor time."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self.last = json.loads(self._process.stdout.readline())
        self.peak_mb = self.last["peak_mb"]
        return self.last["seconds"]

    def end(self) -> None:
        self._process.communicate()


def main(other: str, *algorithms: str) -> None:
    from benchmarks.models import gpt2_6_layers
    from benchmarks.outcome import in_turns, publish, ratio

    rows: dict[str, Any] = {}
    details: dict[str, Any] = {}
    model = gpt2_6_layers()
    for algorithm in algorithms or ("ppo", "grpo"):
        before, now = (Side(tree, algorithm, model) for tree in (Path(other).resolve(), HERE))
        details[algorithm] = times = in_turns({"before": before, "now": now}, ROUNDS, warm_up=0)
        rows[f"{algorithm}: processor seconds, before / now"] = ratio(times["before"], times["now"])
        rows[f"{algorithm}: seconds before; now"] = "; ".join(
            f"{sorted(values)[len(values) // 2]:.1f}" for values in times.values()
        )
        rows[f"{algorithm}: peak, now / before"] = now.peak_mb / before.peak_mb
        rows[f"{algorithm}: MB before; now"] = f"{before.peak_mb:,.0f}; {now.peak_mb:,.0f}"
        norms = "; ".join(f"{side.last['norm']:.6f}" for side in (before, now))
        rows[f"{algorithm}: the last gradient's norm before; now"] = norms
        for side in (before, now):
            side.end()
    shape = f"{GROUPS} × {GROUP_SIZE} responses of {LENGTHS[0]} to {LENGTHS[1]} tokens"
    publish("lengths", f"update at GPT-2's width, 6 layers: {shape}", rows, details)


def serve(algorithm: str, model: str) -> None:
    """Make an update for each line of the standard input; write what it took as a line of JSON."""
    from contracts.components import find
    from learner.algorithms import ALGORITHMS
    from learner.learner import Learner
    from learner.settings import LearnerSettings, ModelSettings

    kind = find("algorithm", algorithm, ALGORITHMS)
    learner = Learner(
        ModelSettings(path=model),
        kind(num_epochs=1, minibatch_size=GROUPS * GROUP_SIZE, learning_rate=1e-5),
        LearnerSettings(device="cpu", num_threads=1),
        seed=0,
        iterations=100,
    )
    for _ in sys.stdin:
        rollouts = _rollouts(learner.version)
        started = time.process_time()
        metrics = learner.update(rollouts)
        seconds = time.process_time() - started
        lap = {"seconds": seconds, "peak_mb": _peak_mb(), "norm": metrics["gradient_norm/policy"]}
        print(json.dumps(lap), flush=True)


def _rollouts(version: int) -> list[Any]:
    from contracts.rollout import FinishReason, Prompt, Rollout, Turn

    draw = random.Random(0)
    rollouts = []
    for group in range(GROUPS):
        question = tuple(draw.randrange(1, VOCABULARY) for _ in range(PROMPT_TOKENS))
        for _ in range(GROUP_SIZE):
            num_tokens = draw.randint(*LENGTHS)
            answer = tuple(draw.randrange(1, VOCABULARY) for _ in range(num_tokens))
            logprobs, versions = (UNIFORM,) * num_tokens, (version,) * num_tokens
            turn = Turn(question, answer, "", logprobs, versions, draw.random())
            index = len(rollouts)
            rollouts.append(Rollout(index, group, Prompt(str(group), ""), (turn,), FinishReason.LENGTH))
    return rollouts


def _peak_mb() -> float:
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        serve(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
