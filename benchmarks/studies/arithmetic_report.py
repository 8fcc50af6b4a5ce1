"""The table and the picture of GRPO and DAPO on sums, from the runs of `benchmarks.studies.arithmetic`.

Brute force recomputes the numbers of four answers per question, and their errors, from the runs' texts. The
report ends with an error if a run's numbers differ.
"""

import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies.arithmetic import RUNS, SECONDS
from services.runs.folder import RunFolder
from services.runs.standard_errors import standard_error_of_change

PAGE, PICTURE = Path("benchmarks/out/gsm8k.md"), Path("docs/images/gsm8k.png")
NAMES = {
    "warm": "supervised, from nothing",
    "grpo": "GRPO",
    "dapo": "DAPO",
    "gym-warm": "`chain_sum`: supervised",
    "gym": "`chain_sum`: GRPO",
}
COLOURS = {"grpo": "#1f6f8b", "dapo": "#c8553d"}
K = 4
TOLERANCE = 1e-9
Rows = Sequence[Mapping[str, Any]]


def brute_force(rows: Rows) -> dict[str, float]:
    """Compute the numbers of K answers per question and their errors from answers and rewards.

    pass@j counts all subsets of j answers. maj@K takes the first of the most frequent answers in every order.
    Errors come from the jackknife, which omits one question at a time.
    """
    questions: dict[str, list[tuple[str | None, bool]]] = {}
    rewards: dict[str, list[float]] = {}
    for row in rows:
        questions.setdefault(row["sample_id"], []).append((row["answer"], row["reward"] >= 1))
        rewards.setdefault(row["sample_id"], []).append(row["reward"])  # reasoning_gym pays parts of 1
    by_question = {f"mean@{K}": [statistics.fmean(paid) for paid in rewards.values()]}
    for j in (1, 2, 4):
        by_question[f"pass@{j}"] = [
            statistics.fmean(any(right for _, right in some) for some in itertools.combinations(answers, j))
            for answers in questions.values()
        ]
    by_question[f"maj@{K}"] = [
        statistics.fmean(_elected(order) for order in itertools.permutations(answers))
        for answers in questions.values()
    ]
    means = {name: statistics.fmean(values) for name, values in by_question.items()}
    return means | {f"{name}/standard_error": jackknife(values) for name, values in by_question.items()}


def _elected(order: Sequence[tuple[str | None, bool]]) -> bool:
    votes = [answer for answer, _ in order if answer is not None]
    most = max(map(votes.count, votes), default=0)
    return next((right for answer, right in order if votes.count(answer) == most > 0), False)


def jackknife(values: Sequence[float]) -> float:
    """Return √((n - 1) / n · Σ (mean without i - their mean)²) (Efron and Tibshirani 1993, equation 11.5).

    >>> jackknife([2.0, 6.0])  # the means without one are 6 and 2
    2.0
    """
    count, total = len(values), math.fsum(values)
    without = [(total - value) / (count - 1) for value in values]
    centre = statistics.fmean(without)
    return math.sqrt((count - 1) / count * math.fsum((value - centre) ** 2 for value in without))


def check(run: RunFolder) -> float:
    """Return the largest difference between a run's numbers and those of brute force.

    Raises:
        SystemExit: a number is missing, or differs by more than TOLERANCE; or a text with the right end was
            read as another answer.
    """
    largest = 0.0
    for split in ("val", "test"):
        for evaluation in run.evaluations(split):
            rows = run.predictions(evaluation["epoch"], split)
            for row in rows:
                ends = re.search(r"\n#### ([1-9]\d*)$", row["generated_text"])
                if ends and row["answer"] != ends[1]:
                    raise SystemExit(
                        f"{run.path}, {split}: {row['generated_text']!r} answers {row['answer']}"
                    )
            for name, value in brute_force(rows).items():
                reported = evaluation["metrics"].get(name, math.inf)
                if abs(reported - value) > TOLERANCE:
                    raise SystemExit(f"{run.path}, {split}, {name}: {reported}, not {value}")
                largest = max(largest, abs(reported - value))
    return largest


def before_and_after(run: RunFolder) -> list[tuple[dict[str, float], Rows]]:
    """Return the metrics and the rows of the first and of the last test."""
    evaluations = run.evaluations("test")
    return [(evaluations[i]["metrics"], run.predictions(evaluations[i]["epoch"], "test")) for i in (0, -1)]


def gain(run: RunFolder) -> tuple[float, float]:
    """Return the change of the mean from the first to the last test, and its error over questions."""
    (before, old), (after, new) = before_and_after(run)
    sides = [
        ([sample["reward"] for sample in rows], [sample["sample_id"] for sample in rows])
        for rows in (old, new)
    ]
    error = standard_error_of_change(*sides[0], *sides[1]) or math.nan
    return after["reward/mean"] - before["reward/mean"], error


def row(name: str, seed: str, run: RunFolder, seconds: float) -> str:
    (before, _), (after, _) = before_and_after(run)
    change, error = gain(run)
    cells = [
        *(name, seed, _with_error(before, f"mean@{K}"), _with_error(after, f"mean@{K}")),
        *(f"{change:+.3f} ± {error:.3f}", f"{change / error:.1f}"),
        *(f"{before[key]:.3f} → {after[key]:.3f}" for key in (f"pass@{K}", f"maj@{K}")),
        f"{seconds:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _with_error(metrics: Mapping[str, float], name: str) -> str:
    return f"{metrics[name]:.3f} ± {metrics[f'{name}/standard_error']:.3f}"


def runs_of(algorithm: str) -> dict[str, RunFolder]:
    """Return the finished runs of an algorithm by seed."""
    folders = [RUNS / algorithm, *sorted(RUNS.glob(f"{algorithm}-seed*"))]
    done = [path for path in folders if (path / "model").is_dir()]
    return {path.name.partition("-seed")[2] or "0": RunFolder(path) for path in done}


def table() -> list[str]:
    took = dict(line.split() for line in SECONDS.read_text().splitlines())
    lines = [
        f"| | seed | mean@{K} before | mean@{K} after | gain | in errors | pass@{K} | maj@{K} | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    runs = [(name, seed, run) for name in NAMES for seed, run in runs_of(name).items()]
    for name, seed, run in runs:
        print(f"{run.path.name}: differs from brute force by at most {check(run):.1e}")
        lines.append(row(NAMES[name], seed, run, float(took[run.path.name])))
    return lines


def draw() -> None:
    """Draw the share of right answers to the questions of training, iteration by iteration."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    for name, colour in COLOURS.items():
        curves = [[line[_rewards(line)] for line in run.rollout_info()] for run in runs_of(name).values()]
        for curve in curves:
            axes.plot(range(1, len(curve) + 1), curve, color=colour, alpha=0.25, linewidth=1)
        if curves:
            mean = [statistics.fmean(values) for values in zip(*curves, strict=True)]
            axes.plot(range(1, len(mean) + 1), mean, color=colour, linewidth=2, label=NAMES[name])
    axes.set(xlabel="iteration", ylabel="right answers in training", ylim=(0, 0.7))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(PICTURE, dpi=160)


def _rewards(line: Mapping[str, Any]) -> str:
    """Return the key of the mean over all rollouts, including those that DAPO drops."""
    return "refill/reward_mean" if "refill/reward_mean" in line else "reward/mean"


def main() -> None:
    """Check the runs, and write the table and the picture."""
    draw()
    rows = table()
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("\n".join([*rows, ""]))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
