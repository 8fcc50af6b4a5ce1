"""The table and the picture of the text games, from the runs of `benchmarks.studies.games`."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies.games import ALGORITHMS, PAGE, RUNS

PICTURE = PAGE.with_suffix(".png")
WON, STEPS, INVALID = (f"environment/{what}/mean" for what in ("won", "steps", "invalid"))
HEAD = "| who plays the test games | won | gain, a seed each | commands a game | refused | minutes |"
NAMES = {"ppo": "PPO", "rejection": "rejection sampling, the better half"}


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def tested(run: Path) -> list[dict[str, float]]:
    """Return the results on the test games before and after."""
    return [line["metrics"] for line in lines_of(run / "test_split_metrics.jsonl")]


def runs_of(algorithm: str) -> list[Path]:
    return sorted(run for run in RUNS.glob(f"{algorithm}-seed*") if len(tested(run)) == 2)


def with_error(values: Sequence[float]) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ± {error:.3f}"


def minutes(runs: Sequence[Path]) -> float:
    took = [sum(line["time/iteration_s"] for line in lines_of(run / "rollout_info.jsonl")) for run in runs]
    return statistics.fmean(took) / 60


def table() -> list[str]:
    untrained = tested(RUNS / "warm")[0]
    lines = [HEAD, "|---|---|---|---|---|---|"]
    for who, name in (("random", "any possible command"), ("expert", "the walkthrough")):
        means = {key: untrained.get(f"baseline/{who}/{key}", 0.0) for key in (WON, STEPS, INVALID)}
        lines.append(f"| {name} | {means[WON]:.3f} | | {means[STEPS]:.1f} | {means[INVALID]:.2f} | |")
    befores = [tested(run)[0] for algorithm in ALGORITHMS for run in runs_of(algorithm)]
    lines.append(_row("the warm start", befores, "", minutes([RUNS / "warm"])))
    for algorithm in (algorithm for algorithm in ALGORITHMS if runs_of(algorithm)):
        runs = runs_of(algorithm)
        gains = [after[WON] - before[WON] for before, after in map(tested, runs)]
        signed = ", ".join(f"{gain:+.3f}" for gain in gains)
        lines.append(_row(NAMES[algorithm], [tested(run)[1] for run in runs], signed, minutes(runs)))
    return lines


def _row(name: str, runs: Sequence[dict[str, float]], gains: str, took: float) -> str:
    steps, invalid = (statistics.fmean(run.get(key, 0.0) for run in runs) for key in (STEPS, INVALID))
    won = with_error([run[WON] for run in runs])
    return f"| {name} | {won} | {gains} | {steps:.1f} | {invalid:.2f} | {took:.1f} |"


def draw() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    for algorithm, color in zip(ALGORITHMS, ("#1f6f8b", "#c8553d"), strict=True):
        if not runs_of(algorithm):
            continue
        curves = [[line[WON] for line in lines_of(run / "rollout_info.jsonl")] for run in runs_of(algorithm)]
        for curve in curves:
            axes.plot(range(1, len(curve) + 1), curve, color=color, alpha=0.25, linewidth=1)
        mean = [statistics.fmean(values) for values in zip(*curves, strict=True)]
        axes.plot(range(1, len(mean) + 1), mean, color=color, linewidth=2, label=NAMES[algorithm])
    axes.set(xlabel="iteration of 128 games", ylabel="training games won", ylim=(0, 1))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(PICTURE, dpi=160)


def main() -> None:
    """Write the table and the picture."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    draw()
    rows = table()
    PAGE.write_text("\n".join([*rows, ""]))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
