"""Why OpenRL's options raise no held-out reward on DailyDialog: one option changed at a time.

python -m benchmarks.daily_dialog_arms start DATA      the model, its warm start, the classifier; once
python -m benchmarks.daily_dialog_arms run DATA SEED   each arm with this seed; what is done stays
python -m benchmarks.daily_dialog_arms table           the table of docs/results/daily_dialog.md

A run is one process with one thread. Eight replies to each held-out prompt keep the error small.
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.daily_dialog import EOU, make_model
from contracts.errors import RunError
from services.config.compose import run_settings
from services.runs.folder import RunFolder

ROOT = Path(__file__).parent / "out" / "daily_dialog"
PAGE = Path(__file__).parents[1] / "docs" / "results" / "daily_dialog.md"
BEGIN, END = "<!-- arms -->\n", "<!-- end of arms -->\n"
HERE = (
    *("rollout.engine=transformers", "rollout.num_threads=1", "learner.num_threads=1", "learner.device=cpu"),
    *("tracking.enabled=false", "save_every=0", f"output_dir={ROOT / 'runs'}"),
)
STOP = f'rollout.stop=["{EOU}"]'
WARM_UP = (
    *("algorithm=supervised", "task=daily_dialog", f"model.path={ROOT / 'untrained'}", "model.dropout=true"),
    *("algorithm.learning_rate=2e-3", "algorithm.loss_on=text", "algorithm.minibatch_size=16"),
    *("learner.lr_schedule=cosine", "iterations=6", "rollout.prompts_per_iteration=1108", "evaluate_every=0"),
    *("rollout.max_prompt_tokens=128", "rollout.max_tokens=40", STOP, "metrics=[meteor]"),
)
CLASSIFIER = (
    *("preset=daily_dialog_intent", f"model={ROOT / 'runs' / 'warm_up' / 'model'}", "learning_rate=5e-4"),
    *("task.end_references=false", "num_epochs=8", "batch_size=32", "lr_schedule=linear", "warmup_share=0.1"),
    *("optimizer.weight_decay=0.01", f"output={ROOT / 'intent'}"),
)
SHARED = (
    *("experiment=daily_dialog_openrl", f"model.path={ROOT / 'runs' / 'warm_up' / 'model'}"),
    *(
        "model.tokenizer=null",
        "rollout.max_prompt_tokens=64",
        "algorithm.minibatch_size=8",
        "metrics=[meteor]",
    ),
    *("algorithm.learning_rate=1e-4", "evaluate_every=0", "evaluation.samples_per_prompt=8", STOP),
)


def _rewards(intent: float, meteor: float) -> str:
    model = ROOT / "intent" / "model"
    judged = f"{{name: intent_accuracy, weight: {intent}, model: '{model}', join: last_utterance_unmarked}}"
    return f"reward=[{judged}, {{name: meteor, weight: {meteor}}}]"


OPENRL = (_rewards(0.5, 0.5), "iterations=40")
ARMS: dict[str, tuple[str, ...]] = {
    "as OpenRL has it": OPENRL,
    "no KL": (*OPENRL, "algorithm.kl.coefficient=0", "algorithm.kl.target=null"),
    "KL target 0.5, as RL4LMs": (*OPENRL, "algorithm.kl.target=0.5"),
    "intent 0.75, METEOR 0.25, as RL4LMs": (_rewards(0.75, 0.25), "iterations=40"),
    "120 iterations": (_rewards(0.5, 0.5), "iterations=120"),
}


def start(data: Path) -> None:
    """Make the untrained model, warm it up, and train the classifier."""
    from services.cli import main as whetstone

    if not (ROOT / "untrained" / "config.json").exists():
        make_model(ROOT / "untrained", data)
    _train("warm_up", [*WARM_UP, f"task.data_files={data}"])
    if code := whetstone(["train-reward", *CLASSIFIER, f"task.data_files={data}"]):
        raise RunError(f"the classifier ended with exit code {code}")


def run(data: Path, seed: int) -> None:
    """Train each arm with this seed."""
    for name, own in ARMS.items():
        _train(_folder(name, seed), [*SHARED, *own, f"task.data_files={data}", f"seed={seed}"])


def table(seeds: Sequence[int]) -> str:
    """Return a row for each arm and seed whose run is done: held-out changes over the same prompts."""
    lines = [
        "| arm | seed | training reward, last ten | validation | test | both, in errors | intent, test"
        " | METEOR, test | KL, end | α, end |",
        "|---" * 10 + "|",
    ]
    for name in ARMS:
        for seed in seeds:
            folder = RunFolder(ROOT / "runs" / _folder(name, seed))
            if folder.model.is_dir():
                lines.append(f"| {name} | {seed} | {_row(folder)} |")
    return "\n".join(lines) + "\n"


def _row(folder: RunFolder) -> str:
    rows = folder.rollout_info()
    changes = [_change(folder, split) for split in ("validation", "test")]
    both = sum(change for change, _ in changes) / sum(error**2 for _, error in changes) ** 0.5
    before, after = (folder.evaluations("test")[index]["metrics"] for index in (0, -1))
    parts = (f"reward/{part}/mean" for part in ("intent_accuracy", "meteor"))
    cells = [
        f"{statistics.fmean(row['reward/mean'] for row in rows[-10:]):.3f}",
        *(f"{change:+.3f} ± {error:.3f}" for change, error in changes),
        f"{both:+.1f}",
        *(f"{before[key]:.3f} → {after[key]:.3f}" for key in parts),
        f"{statistics.fmean(row['kl/mean'] for row in rows[-10:]):.3f}",
        f"{rows[-1].get('kl/coefficient', 0.0):.2f}",
    ]
    return " | ".join(cells)


def _change(folder: RunFolder, split: str) -> tuple[float, float]:
    """Return how much the mean reward of a split's prompts rose, and the standard error over prompts."""
    by_prompt: list[dict[Any, list[float]]] = []
    evaluated = folder.evaluations(split)
    for index in (0, -1):
        rewards: dict[Any, list[float]] = {}
        for row in folder.predictions(evaluated[index]["epoch"], split):
            rewards.setdefault(row["sample_id"], []).append(row["reward"])
        by_prompt.append(rewards)
    before, after = by_prompt
    changes = [statistics.fmean(after[prompt]) - statistics.fmean(own) for prompt, own in before.items()]
    return statistics.fmean(changes), statistics.stdev(changes) / len(changes) ** 0.5


def _folder(name: str, seed: int) -> str:
    return f"{name.replace(' ', '-').replace(',', '')}-seed{seed}"


def _train(name: str, overrides: Sequence[str]) -> None:
    from services.train.train import train

    if (ROOT / "runs" / name / "model").is_dir():
        return
    if code := train(run_settings([*overrides, *HERE, f"run_name={name}"]), here=True):
        raise RunError(f"{name} ended with exit code {code}")


def main(argv: Sequence[str]) -> int:
    match list(argv):
        case ["start", data]:
            start(Path(data).absolute())
        case ["run", data, seed]:
            run(Path(data).absolute(), int(seed))
        case ["table"]:
            before, _, rest = PAGE.read_text().partition(BEGIN)
            PAGE.write_text(before + BEGIN + table(range(8)) + END + rest.partition(END)[2])
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
