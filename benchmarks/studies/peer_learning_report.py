"""Page and picture of `benchmarks.studies.peer_learning`: rewards by sample and by second, with errors over seeds."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.lesson import LETTER, Lesson
from services.studies.comparison.differences import welch_limit

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SIDES = {"trl": "C1", "whetstone": "C0"}
LAST = 10  # iterations
ABOUT = f"""\
trl and Whetstone train the same small model with the same prompts, reward, learning rate, group size and
number of tokens. The reward is the share of a story's words that begin with `{LETTER}`. Seeds: {{seeds}}.
± is the standard error over seeds. A difference is clear if it exceeds Welch's bound at 95 %. *Last* is the
mean reward of the last {LAST} iterations, *all* of all iterations; faster learning raises *all*.
Seconds count from the first iteration. `python -m benchmarks.studies.peer_learning MODEL` repeats the runs."""
Runs = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]  # (algorithm, side) -> a curve for each seed


def write_page(folder: Path, lessons: Mapping[str, Lesson]) -> None:
    runs = {
        (algorithm, side): [
            json.loads(file.read_text()) for file in sorted(folder.glob(f"{side}-{algorithm}-*.json"))
        ]
        for algorithm in lessons
        for side in SIDES
    }
    runs = {key: repeats for key, repeats in runs.items() if repeats}
    draw(runs, RESULTS / "peer_learning.png")
    file = RESULTS / "peer_learning.md"
    # The text below the table stays.
    _, mark, rest = file.read_text().partition("\n## ") if file.exists() else ("", "", "")
    file.write_text(page(runs, lessons) + mark + rest)


def page(runs: Runs, lessons: Mapping[str, Lesson]) -> str:
    lines = [
        "# Learning beside trl",
        "",
        ABOUT.format(seeds=max(len(repeats) for repeats in runs.values())),
        "",
        "| | trl | Whetstone | difference |",
        "|---|---|---|---|",
    ]
    for algorithm in dict.fromkeys(name for name, _ in runs):
        theirs, ours = (runs[algorithm, side] for side in SIDES)
        for title, start in ((f"last {LAST}", -LAST), ("all", 0)):
            means = [[statistics.fmean(run["rewards"][start:]) for run in side] for side in (theirs, ours)]
            cells = " | ".join(_with_error(values) for values in means)
            lines.append(f"| {algorithm.upper()}, {title} | {cells} | {_difference(*means)} |")
        spent = [
            statistics.median(run["seconds"][-1] / len(run["seconds"]) for run in side)
            for side in (theirs, ours)
        ]
        lines.append(
            f"| {algorithm.upper()}, seconds an iteration | {spent[0]:.2f} | {spent[1]:.2f} | "
            f"{spent[0] / spent[1]:.2f} × as fast |"
        )
    return "\n".join([*lines, "", "![curves](peer_learning.png)", ""])


def _with_error(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.3f}"
    return mean if len(values) < 2 else f"{mean} ± {_error(values):.3f}"


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _difference(theirs: Sequence[float], ours: Sequence[float]) -> str:
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    if min(len(theirs), len(ours)) < 2:
        return f"{difference:+.3f}, one seed"
    bound = welch_limit(theirs, ours) * (_error(theirs) ** 2 + _error(ours) ** 2) ** 0.5
    return f"{difference:+.3f} ({'clear' if abs(difference) > bound else 'not clear'}: bound {bound:.3f})"


def draw(runs: Runs, file: Path) -> None:
    """Draw mean rewards with a band of one standard error: a row an algorithm, by sample and by second."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    algorithms = list(dict.fromkeys(name for name, _ in runs))
    figure, axes = plt.subplots(len(algorithms), 2, figsize=(11, 3.8 * len(algorithms)), squeeze=False)
    for (algorithm, side), repeats in runs.items():
        rewards = list(zip(*(run["rewards"] for run in repeats), strict=True))
        seconds = [
            statistics.fmean(column) for column in zip(*(run["seconds"] for run in repeats), strict=True)
        ]
        means, errors = (
            [statistics.fmean(column) for column in rewards],
            [_error(column) for column in rewards],
        )
        low, high = ([m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
        for axis, at in zip(
            axes[algorithms.index(algorithm)], (range(1, len(means) + 1), seconds), strict=True
        ):
            axis.plot(at, means, label=side, color=SIDES[side])
            axis.fill_between(at, low, high, color=SIDES[side], alpha=0.2, linewidth=0)
    for row, algorithm in zip(axes, algorithms, strict=True):
        for axis, label in zip(row, ("iterations", "seconds"), strict=True):
            axis.set(title=algorithm.upper(), xlabel=label, ylabel="mean reward")
            axis.grid(alpha=0.3)
            axis.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
