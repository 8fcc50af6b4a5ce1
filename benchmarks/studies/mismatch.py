"""Rollouts in bfloat16 and a learner in float32: rewards and KL with and without the correction.

`python -m benchmarks.studies.mismatch model.path=MODEL task.data_files=FOLDER` runs `whetstone train` for each kind
and seed, and prints the last five iterations' rewards and KL. Further overrides are those of a run.
"""

import argparse
import json
import statistics
import subprocess
import sys

from benchmarks.outcome import OUT, publish

ROOT = OUT / "mismatch"
ITERATIONS = 20
LAST = 5  # iterations that count
KINDS = {
    "float32": ["rollout.dtype=float32"],
    "bfloat16, corrected": ["rollout.dtype=bfloat16"],
    "bfloat16, uncorrected": ["rollout.dtype=bfloat16", "learner.mismatch.weights=none"],
}
ALWAYS = (
    *(
        "experiment=stories_sentiment",
        "reward={name: length, target: 30}",
        "metrics=[]",
        f"iterations={ITERATIONS}",
    ),
    *("rollout.engine=vllm", "rollout.num_threads=1", "learner.num_threads=1", "rollout.kv_cache_gib=0.25"),
    *("evaluate_every=0", "evaluation.num_prompts=16", "save_every=0", "tracking.enabled=false"),
)


def run(kind: str, seed: int, overrides: list[str]) -> list[dict[str, float]]:
    """Return a run's metrics by iteration; train the run if it is missing."""
    name = f"{kind.replace(', ', '-')}-seed{seed}"
    file = ROOT / name / "rollout_info.jsonl"
    if not (ROOT / name / "model").exists():
        command = [*(sys.executable, "-m", "services.cli", "train"), *ALWAYS]
        command += [f"output_dir={ROOT}", f"run_name={name}", f"seed={seed}", *KINDS[kind], *overrides]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in file.read_text().splitlines()][:ITERATIONS]


def last(rows: list[dict[str, float]], key: str) -> float:
    return statistics.fmean(row[key] for row in rows[-LAST:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments, overrides = parser.parse_known_args()
    shown: dict[str, str] = {}
    curves: dict[str, list[dict[str, float]]] = {}
    for kind in KINDS:
        runs = [run(kind, seed, overrides) for seed in arguments.seeds]
        means = []
        for key in ("reward/mean", "kl/mean", "mismatch/kl", "mismatch/max_ratio"):
            values = [last(rows, key) for rows in runs]
            means.append(
                f"{key} {statistics.fmean(values):.4g} ({', '.join(f'{mean:.4g}' for mean in values)})"
            )
        shown[kind] = "; ".join(means)
        curves |= {f"{kind}, seed {seed}": rows for seed, rows in zip(arguments.seeds, runs, strict=True)}
    publish("mismatch", f"The last {LAST} iterations' means, and each seed's", shown, curves)


if __name__ == "__main__":
    main()
