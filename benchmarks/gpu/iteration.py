"""Seconds of whole GRPO iterations by phase, and from the command to the first rollout.

`whetstone train` runs 64 prompts × 8 responses of 256 tokens, one step, with learner and worker on one GPU.
The first iteration has a separate line, because its caches are cold and its memory is fresh.
"""

import json
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.lines import ROOT, record
from benchmarks.gpu.machine import model, on_gpu
from benchmarks.outcome import OUT
from services.runs.folder import RunFolder

FOLDER = OUT / "gpu-iteration"
PHASES = {
    "iteration": "time/iteration_s",
    "generation": "time/rollout_s",
    "scoring": "time/score_s",
    "update": "time/update_s",
    "new weights": "time/weights_s",
}
RATES = {"MFU of training": "throughput/mfu", "MFU of all passes": "throughput/mfu_all_passes"}
REWARD = "def parity(samples):\n    return [float(len(sample.text) % 2) for sample in samples]\n"


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    prompts, group, tokens, iterations = (64, 8, 256, 6) if on_gpu() else (4, 2, 8, 3)
    began = time.time()
    train(
        f"rollout.prompts_per_iteration={prompts}",
        *(f"rollout.group_size={group}", f"rollout.max_tokens={tokens}", "rollout.ignore_eos=true"),
        *(f"algorithm.minibatch_size={prompts * group}", f"iterations={iterations}"),
    )
    rows = RunFolder(FOLDER / "run").rollout_info()
    record("iteration", {"command to first rollout, s": first_rollout(FOLDER / "run", began)})
    for title, name in PHASES.items():
        record("iteration", {f"{title} of the first iteration, s": float(rows[0][name])})
        record("iteration", {f"{title}, s": statistics.median(float(row[name]) for row in rows[1:])})
    generated = prompts * group * tokens / statistics.median(float(row["time/rollout_s"]) for row in rows[1:])
    record("iteration", {"generated tokens a second": generated})
    for title, name in RATES.items():
        if name in rows[-1]:
            record("iteration", {title: statistics.median(float(row[name]) for row in rows[1:])})


def train(*options: str) -> None:
    """Run `whetstone train`, its words in this part's log.

    Raises:
        SystemExit: it failed.
    """
    (FOLDER / "parity.py").write_text(REWARD)
    data = FOLDER / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in made_up()))
    command = [
        *(sys.executable, "-m", "services.cli", "train", "algorithm=grpo", "task=prompts"),
        *(f"task.data_files={data}", f"reward={FOLDER / 'parity.py'}:parity", "metrics=[]"),
        *(f"model.path={model()}", f"output_dir={FOLDER}", "run_name=run", "--timeline"),
        *("evaluate_every=never", "save_every=0", "tracking.enabled=false", "rollout.max_concurrent=512"),
        *("algorithm.num_epochs=1", "algorithm.learning_rate=1e-6", "algorithm.kl.coefficient=0"),
        *(["cluster=one_gpu"] if on_gpu() else ["rollout.kv_cache_gib=0.25"]),
        *options,
    ]
    if code := subprocess.run(command, cwd=ROOT).returncode:
        raise SystemExit(f"Error: {' '.join(command)} ended with {code}")


def made_up() -> list[str]:
    """Return prompts of 24 random numbers, with different beginnings."""
    draw = random.Random(0)
    return [" ".join(str(draw.randint(1, 150_000)) for _ in range(24)) for _ in range(512)]


def first_rollout(run: Path, began: float) -> float:
    """Return the seconds from the command to the first rollout, from the run's timeline."""
    events: list[dict[str, Any]] = json.loads((run / "timeline.json").read_text())
    rollouts = [event for event in events if event["name"] == "generates"]
    return min((event["ts"] + event["dur"]) / 1e6 for event in rollouts) - began


if __name__ == "__main__":
    main()
