"""The page of `benchmarks.lolrl`: its commands, the value of its data, and the results."""

import csv
import json
from pathlib import Path
from typing import Any

from benchmarks.lolrl import COMMANDS, PIPELINES, ROOT

PAGE = Path("docs/results/lolrl.md")
REWARD = "reward/mean"
SHOWN = ("response_length/mean", "lexical/distinct-2", "training/responses")
HEADS = {
    "response_length/mean": "tokens",
    "lexical/distinct-2": "distinct-2",
    "training/responses": "trained on",
}

INTRODUCTION = """# LoL-RL's tasks, from data to table

A language model of 260,000 weights on samples of 400 training rows each: far too small for good answers,
and enough to see every step work and whether the reward rises. `python -m benchmarks.lolrl DATA --model
MODEL` runs one command a step: a reward is trained where there is something to train it on (`whetstone
train-reward`), the data are scored, a warm start imitates them (`nll`), the reference's log-
probabilities and values are added, and `whetstone benchmark offline` trains the algorithms, evaluates on
the test split and aggregates. The settings are the published ones, but for the learning rate, the number
of epochs and the beams. ± is the standard error over seeds; distinct-2 is over all test responses.
"""


def rows_of(task: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return a row of each measure for each algorithm."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    with (ROOT / task / "benchmark" / "offline.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if int(row["num_runs"]):
                found.setdefault(row["algorithm"], {})[row["metric"]] = row
    return found


def table(task: str) -> list[str]:
    found = rows_of(task)
    first = next(iter(found.values()))
    parts = [key for key in first if key.startswith("reward/") and key != REWARD]
    parts = parts if len(parts) > 1 else []
    keys = [REWARD, *parts, *SHOWN]
    heads = [HEADS.get(key, key.removeprefix("reward/").removesuffix("/mean")) for key in keys]
    heads[0] = "reward"
    lines = ["| algorithm | " + " | ".join(heads) + " |", "|---|" + "---|" * len(keys)]
    before = [float(first[key]["before_mean"] or "nan") for key in keys[:-1]]
    lines.append("| the warm start | " + " | ".join(f"{value:.3f}" for value in before) + " | |")
    for algorithm, row in found.items():
        told = [
            f"{float(row[key]['mean']):.3f} ± {float(row[key]['standard_error'] or 0):.3f}"
            for key in keys[:-1]
        ]
        told.append(f"{float(row[keys[-1]]['mean']):.0f}")
        seeds = int(row[REWARD]["num_runs"])
        lines.append(f"| `{algorithm}`, {seeds} seed{'s' if seeds > 1 else ''} | " + " | ".join(told) + " |")
    return lines


def about(task: str) -> str:
    summary = json.loads((ROOT / task / "annotated" / "summary.json").read_text())
    value, judge = summary["value"], ROOT / task / "reward" / "results.json"
    error, where = value["error"]["held_out"], "held-out prompts"
    if error is None:
        error, where = value["error"]["train"], "the prompts that it learned from"
    told = (
        f"{summary['num_rows']} responses annotated; {value['good']['share_kept']:.0%} of the good ones have "
        f"a positive advantage; the value's squared error on {where} is {error:.4f}, that of always saying "
        f"the mean {value['constant_error']:.4f}."
    )
    if judge.exists():
        measured = json.loads(judge.read_text())["test"]
        told += f" The trained reward's accuracy on the test split: {measured['accuracy']:.3f}."
    return told


def main() -> None:
    commands = [json.loads(line) for line in COMMANDS.read_text().splitlines()]
    lines = [INTRODUCTION]
    for task in (task for task in PIPELINES if (ROOT / task / "benchmark" / "offline.csv").exists()):
        took = [row for row in commands if row["task"] == task]
        steps = ", ".join(f"`{row['command'][0]}` {row['seconds'] / 60:.1f}" for row in took)
        lines += [
            f"## {task}",
            "",
            about(task),
            "",
            *table(task),
            "",
            f"Minutes of each command: {steps}.",
            "",
        ]
    lines += ["`python -m benchmarks.lolrl DATA --model MODEL && python -m benchmarks.lolrl_report`", ""]
    PAGE.write_text("\n".join(lines))
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
