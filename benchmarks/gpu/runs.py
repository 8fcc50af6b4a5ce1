"""Run PPO and GRPO whole on one GPU, from the demo's warm start: does the reward rise?"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.lines import record
from benchmarks.gpu.machine import on_gpu
from benchmarks.outcome import OUT, seconds
from benchmarks.studies.learning import warm_start
from services.runs.folder import RunFolder

FOLDER = OUT / "gpu-runs"
ITERATIONS = 40 if on_gpu() else 2
ALGORITHMS = {"ppo": (), "grpo": ("algorithm.num_epochs=4", "rollout.prompts_per_iteration=16")}


def main() -> None:
    failed: list[str] = []
    start = warm_start("gpt")
    shutil.rmtree(FOLDER, ignore_errors=True)
    for algorithm, options in ALGORITHMS.items():
        run = RunFolder(FOLDER / algorithm)
        title, rows = algorithm.upper(), dict[str, Any]()
        rows[f"{title}: seconds of the whole run"] = seconds(
            lambda a=algorithm, o=options: train(start, a, *o)
        )
        rewards = [line["metrics"]["reward/mean"] for line in run.evaluations("val")]
        rows[f"{title}: validation reward before"], rows[f"{title}: after"] = rewards[0], rewards[-1]
        if on_gpu() and rewards[-1] <= rewards[0]:
            failed.append(f"{title} did not learn: {rewards[0]:.3f} before, {rewards[-1]:.3f} after")
        rows[f"{title}: largest mismatch of a token's probability"] = max(
            row["mismatch/max_ratio"]
            for row in run.training_info() + run.rollout_info()
            if "mismatch/max_ratio" in row
        )
        record("runs", rows)
    if failed:
        raise SystemExit("; ".join(failed))


def train(start: Path, algorithm: str, *options: str) -> None:
    """Run `whetstone train`.

    Raises:
        SystemExit: the run failed; the message shows its output.
    """
    command = [
        *(sys.executable, "-m", "services.cli", "train", "experiment=demo"),
        *(f"algorithm={algorithm}", f"model.path={start}"),
        *(f"output_dir={FOLDER}", f"run_name={algorithm}", "tracking.enabled=false", "save_every=0"),
        *(f"iterations={ITERATIONS}", f"evaluate_every={ITERATIONS}", "algorithm.learning_rate=1e-3"),
        *(["rollout.engine_args={enforce_eager: true}"] if on_gpu() else []),  # a quick start
        *options,
    ]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


if __name__ == "__main__":
    main()
