"""(d) The time of a real run's iteration outside of rollout, reward, score, update and weights."""

import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.models import gpt2_tiny
from benchmarks.outcome import publish
from services.config.compose import run_settings
from services.training.train import train

ITERATIONS, SKIPPED = 40, 5
PARTS = ("rollout", "reward", "score", "update", "weights")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = run_settings(
            [
                f"model.path={gpt2_tiny()}",
                f"output_dir={folder}",
                "run_name=overhead",
                f"iterations={ITERATIONS}",
                "evaluate_every=0",
                "save_every=0",
                "evaluation.num_prompts=8",
                "rollout.max_tokens=32",
                "algorithm.num_epochs=4",
            ]
        )
        train(settings)
        lines = (Path(folder) / "overhead" / "rollout_info.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines][SKIPPED:]
    times = {part: statistics.median(row[f"time/{part}_s"] for row in rows) for part in PARTS}
    lost = [1 - sum(row[f"time/{part}_s"] for part in PARTS) / row["time/iteration_s"] for row in rows]
    shown = {f"{part}, ms": value * 1000 for part, value in times.items()}
    shown["iteration, ms"] = statistics.median(row["time/iteration_s"] for row in rows) * 1000
    shown["share lost, median (less than 0.1)"] = statistics.median(lost)
    publish(
        "overhead", "an iteration: 64 prompts, 32 new tokens, 4 epochs, tiny GPT-2", shown, {"lost": lost}
    )


if __name__ == "__main__":
    main()
