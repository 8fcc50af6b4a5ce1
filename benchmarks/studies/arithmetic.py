"""GRPO and DAPO on word problems in GSM8K's form, by a tiny instruct model on a CPU.

`python -m benchmarks.studies.arithmetic` writes the questions and an untrained model. It runs `whetstone train`
for a supervised warm start, then for each algorithm with each seed. `--only gym` adds a task of the installed
reasoning_gym. The runs' folders hold the figures. `--only` and `--seeds` run a part. Finished runs stay.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Collection, Iterable

from benchmarks.outcome import OUT
from benchmarks.studies.arithmetic_files import make_model, write_questions

ROOT = OUT / "arithmetic"
MODEL, RUNS = ROOT / "untrained", ROOT / "runs"
SECONDS = ROOT / "seconds.txt"
SHARED = [
    "rollout.num_threads=1",  # a model this small needs no second thread
    "rollout.kv_cache_gib=0.25",
    "learner.num_threads=1",
    "evaluation.num_prompts=null",
    "evaluation.samples_per_prompt=4",
    "evaluate_every=0",
    "save_every=0",
]
GSM8K = ["task=gsm8k", "reward=math", "rollout.max_tokens=24"]
WARM_UP = [
    "algorithm=supervised",
    "algorithm.learning_rate=3e-3",
    "algorithm.minibatch_size=32",
    "rollout.prompts_per_iteration=1100",
    "iterations=24",
]
TRAINED = [
    "algorithm.learning_rate=5e-4",
    "algorithm.num_epochs=2",
    "algorithm.minibatch_size=64",
    "learner.lr_schedule=linear",
    "rollout.prompts_per_iteration=32",
    "rollout.group_size=8",
    "iterations=25",
]
ALGORITHMS = {
    "grpo": ["algorithm=grpo"],
    "dapo": ["algorithm=dapo", "algorithm.max_refills=3"],
}
# Sums and differences of two digits: 200 of them, so that most of the test's are trained on, too.
GYM = [
    "task=reasoning_gym",
    "task.dataset=chain_sum",
    "task.options={min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}",
    "task.num_eval_prompts=100",
    "rollout.max_tokens=6",
]
GYM_WARM_UP = [*WARM_UP[:-2], "rollout.prompts_per_iteration=1000", "iterations=14"]


def run(name: str, arguments: list[str]) -> None:
    """Run `whetstone train` unless it is done, and note its seconds."""
    if (RUNS / name / "model" / "config.json").exists():
        return
    command = ["whetstone", "train", f"run_name={name}", f"output_dir={RUNS}", *SHARED, *arguments]
    print(" ".join(f"'{word}'" if " " in word else word for word in command), flush=True)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "services.cli", *command[1:]], check=True)
    with SECONDS.open("a") as file:
        file.write(f"{name} {time.perf_counter() - started:.0f}\n")


def make(only: Collection[str], seeds: Iterable[int]) -> None:
    """Make the questions, the model, and the missing runs."""
    if not (MODEL / "config.json").exists():
        make_model(MODEL, write_questions(ROOT))
    if "warm" in only:
        run("warm", [f"model.path={MODEL}", *GSM8K, f"task.data_files={ROOT / 'shown'}", *WARM_UP])
    for seed in seeds:
        for name in (name for name in ALGORITHMS if name in only):
            options = [*GSM8K, f"task.data_files={ROOT / 'asked'}", *ALGORITHMS[name], *TRAINED]
            run(f"{name}-seed{seed}", [model_of("warm"), *options, f"seed={seed}"])
    if "gym" in only:
        run("gym-warm", [model_of("warm"), *GYM, *GYM_WARM_UP])
        for seed in seeds:
            options = [*GYM, *ALGORITHMS["grpo"], *TRAINED]
            run(f"gym-seed{seed}", [model_of("gym-warm"), *options, f"seed={seed}"])


def model_of(name: str) -> str:
    return f"model.path={RUNS / name / 'model'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=["files", "warm", *ALGORITHMS])
    arguments = parser.parse_args()
    make(arguments.only, arguments.seeds)


if __name__ == "__main__":
    main()
