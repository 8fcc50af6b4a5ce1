"""LoL-RL's pipeline on small samples of its data: rewards, warm start, annotation, values, runs, one table.

`python -m benchmarks.lolrl DATA --model MODEL` needs a small causal model, and folders `hh_rlhf`, `reddit`
and `atomic` below DATA. Each holds train, validation and test as .jsonl in its task's columns. All commands
are printed; `--only` names tasks, `--seeds` other seeds. `python -m benchmarks.lolrl_report` makes the page.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.outcome import OUT

ROOT = OUT / "lolrl"
COMMANDS = ROOT / "commands.jsonl"
SPLITS = ("train", "validation", "test")
ALGORITHMS = "nll,wbc,r_gold,a_lol_ref_free,a_lol"
# Replacements for settings that the experiments have for GPUs and models a thousand times as large.
SMALL = [
    "evaluate_every=0",
    "evaluation.num_beams=1",
    "rollout.num_threads=1",
    "learner.num_threads=1",
    "tracking.enabled=false",
    "rollout.prompts_per_iteration=64",
]
WARM_UP = ["algorithm.learning_rate=1e-3", "data.num_epochs=12"]
TRAINED = ["algorithm.learning_rate=2e-4", "data.num_epochs=6"]

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A task of LoL-RL, the reward trained for it, and the options of its experiments."""

    data: str  # the name of the folder
    judgements: Callable[[list[Row]], Iterable[Row]] | None  # gives the rows that a reward is trained on
    rewards: Callable[[Path, Path], str]  # gives the option, from the trained reward and the file of replies
    options: tuple[str, ...]
    replies: str = "text"  # the column
    algorithms: str = ALGORITHMS
    window: int = 256  # tokens that the reward reads


def pairs(rows: list[Row]) -> Iterable[Row]:
    return rows


def votes(rows: list[Row]) -> Iterable[Row]:
    """Label a reply by whether it was liked better than half of all."""
    middle = sorted(row["score"] for row in rows)[len(rows) // 2]
    for row in rows:
        label = int(row["score"] > middle)
        yield {"prompt": row["parent_text"], "response": row["text"], "label": label}


PIPELINES = {
    "atomic": Pipeline(
        "atomic",
        None,  # a critic learns nothing from 400 rows
        lambda _, replies: f"reward=[{{name: sentiment}}, {{name: tfidf_diversity, corpus: {replies}}}]",
        ("rollout.max_prompt_tokens=128", "rollout.max_tokens=24"),
        replies="tail",
    ),
    "reddit_comments": Pipeline(
        "reddit",
        votes,
        lambda model, replies: (
            "reward=["
            f"{{name: learned_reward, label: updown, model: {model}, label_ix: 1}}, "
            "{name: sentiment}, "
            f"{{name: tfidf_diversity, corpus: {replies}}}]"
        ),
        ('task.eos_token="\\n"', "rollout.max_prompt_tokens=256", "rollout.max_tokens=64"),
    ),
    "helpful_harmless": Pipeline(
        "hh_rlhf",
        pairs,
        lambda model, _: f"reward={{name: learned_reward, model: {model}}}",
        (
            "model.adapter.kind=lora",
            "task.system=",
            "rollout.max_prompt_tokens=320",
            "rollout.max_tokens=96",
        ),
        algorithms="nll,a_lol_ref_free,a_lol,dpo",
        window=448,
    ),
}


def whetstone(task: str, *arguments: str) -> None:
    """Run a command, and record it with its seconds."""
    print("whetstone", *(f"'{each}'" if set(each) & set(" ,{[") else each for each in arguments), flush=True)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "services.cli", *arguments], check=True)
    row = {"task": task, "command": arguments, "seconds": time.perf_counter() - started}
    with COMMANDS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def read(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write(file: Path, rows: Iterable[Row]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def run(task: str, data: Path, model: Path, seeds: str) -> None:
    pipeline, home = PIPELINES[task], ROOT / task
    source, warm = data / pipeline.data, home / "runs" / "warm"
    replies = home / "replies.jsonl"
    write(replies, ({"text": row.get(pipeline.replies, "")} for row in read(source / "train.jsonl")))
    if pipeline.judgements:
        train_reward(task, source, model)
    shared = [
        f"task.data_files={source}",
        f"data.folder={home / 'annotated'}",
        pipeline.rewards(home / "reward" / "model", replies),
        *pipeline.options,
    ]
    annotation = [*shared, f"output={home / 'annotated'}", "learner.num_threads=1"]
    annotation.remove(f"data.folder={home / 'annotated'}")
    annotation = [each for each in annotation if not each.startswith("model.")]
    experiment = f"experiment={task}_nll"
    whetstone(task, "annotate", experiment, *annotation)
    if not (warm / "model").exists():
        whetstone(
            *(task, "train", experiment, f"model.path={model}", f"output_dir={warm.parent}"),
            *("run_name=warm", *shared, *SMALL, *WARM_UP),
        )
    value = ["value=true", "value.max_value=null", "value.learning_rate=1e-3", "value.num_beams=1"]
    whetstone(task, "annotate", experiment, *annotation, f"reference={warm}", *value)
    whetstone(
        *(task, "benchmark", "offline", "--tasks", task, "--algorithms", pipeline.algorithms),
        *("--seeds", seeds, "--out", str(home / "benchmark")),
        *(f"model.path={warm / 'model'}", *shared, *SMALL, *TRAINED),
    )


def train_reward(task: str, source: Path, model: Path) -> None:
    pipeline, home = PIPELINES[task], ROOT / task
    assert pipeline.judgements
    for split in SPLITS:
        write(home / "judgements" / f"{split}.jsonl", pipeline.judgements(read(source / f"{split}.jsonl")))
    if not (home / "reward" / "model").exists():
        whetstone(
            *(task, "train-reward", f"model={model}", f"data.files={home / 'judgements'}"),
            *(f"output={home / 'reward'}", "overwrite=true", "learning_rate=1e-3", "num_epochs=4"),
            *("batch_size=16", f"max_length={pipeline.window}"),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=list(PIPELINES), choices=PIPELINES)
    parser.add_argument("--seeds", default="0,1")
    asked = parser.parse_args()
    for task in asked.only:
        run(task, asked.data.resolve(), asked.model.resolve(), asked.seeds)


if __name__ == "__main__":
    main()
