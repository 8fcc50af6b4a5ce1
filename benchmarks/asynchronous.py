"""Asynchronous and strictly synchronous training, with a reward that takes 50 ms for each text.

    synchronous      write ─ reward ─ update ─ push ─ write ─ reward ─ …
    max_staleness=n  write and reward go on while the learner updates

`python -m benchmarks.asynchronous` runs `whetstone train` for each kind with three seeds. It prints sequences
per second and the rewards at the end, for max_staleness=4 with and without correction.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.outcome import OUT
from contracts.scores import Sample
from reward_servers.rewards.increasing_numbers import IncreasingNumbers
from services.train.demo import make_start_model

ROOT = OUT / "asynchronous"
TEXT_S = 0.05
WARM_UP = 3  # iterations that are not counted
ITERATIONS = 30
KINDS = {
    "synchronous": ["rollout.max_staleness=0"],
    "max_staleness=1": ["rollout.max_staleness=1"],
    "max_staleness=4": ["rollout.max_staleness=4"],
    "max_staleness=4, uncorrected": ["rollout.max_staleness=4", "learner.staleness_correction=none"],
}


class SlowIncreasing(IncreasingNumbers):
    """The task's reward, slowed to 50 ms for each text, like a judge behind a network."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        time.sleep(TEXT_S * len(samples))
        return super().score(samples)


def run(kind: str, seed: int, model: Path) -> None:
    name = folder_of(kind, seed)
    if (ROOT / name / "model").exists():
        return
    command = [
        *(sys.executable, "-m", "services.cli", "train", f"output_dir={ROOT}", f"run_name={name}"),
        *(f"model.path={model}", f"seed={seed}", f"iterations={ITERATIONS}"),
        "experiment=demo",
        "reward={name: 'benchmarks.asynchronous:SlowIncreasing', label: slow}",
        "reward_servers.default.replicas=4",
        "reward_servers.default.batch_size=8",
        "rollout.prompts_per_iteration=64",
        "rollout.num_threads=1",
        "learner.num_threads=1",
        "evaluate_every=0",
        "evaluation.num_prompts=16",
        "save_every=0",
        "tracking.enabled=false",
        *KINDS[kind],
    ]
    subprocess.run(command, check=True)


def folder_of(kind: str, seed: int) -> str:
    return f"{kind.replace('=', '-').replace(', ', '-')}-seed{seed}"


def found(kind: str, seed: int) -> tuple[float, float, list[float]]:
    """Return sequences per second, the last five iterations' mean reward, and every iteration's."""
    file = ROOT / folder_of(kind, seed) / "rollout_info.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    counted = rows[WARM_UP:]
    seconds = sum(row["time/iteration_s"] for row in counted)
    sequences = sum(row["rollouts/trained"] for row in counted)
    rewards = [row["reward/mean"] for row in rows]
    return sequences / seconds, statistics.fmean(rewards[-5:]), rewards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    asked = parser.parse_args()
    model = ROOT / "model"
    if not (model / "model.safetensors").exists():
        make_start_model(model, seed=0)
    for seed in asked.seeds:
        for kind in asked.kinds:
            run(kind, seed, model)
    for kind in asked.kinds:
        results = [found(kind, seed) for seed in asked.seeds]
        rates, ends = [r[0] for r in results], [r[1] for r in results]
        print(f"{kind:32} {statistics.fmean(rates):6.2f} sequences/s   last rewards {ends}")


if __name__ == "__main__":
    main()
