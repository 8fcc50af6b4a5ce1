"""The table of `docs/results/learning.md` and its picture, from the results of `benchmarks.studies.learning`."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.outcome import OUT
from benchmarks.studies.learning import RUNS

RESULTS = Path(__file__).parents[2] / "docs" / "results"
Runs = dict[tuple[str, str], list[dict[str, Any]]]  # (family, algorithm) -> one for each seed


def main() -> None:
    newest = {}  # the last result of each run, as the file only grows
    for line in (OUT / "learning.jsonl").read_text().splitlines():
        run = json.loads(line)
        newest[run["family"], run["name"], run["seed"]] = run
    runs: Runs = {(family, name): [] for family in ("gpt", "t5") for name in RUNS}
    for (family, name, _), run in newest.items():
        runs[family, name].append(run)
    runs = {key: repeats for key, repeats in runs.items() if repeats}
    RESULTS.mkdir(exist_ok=True)
    draw(runs, RESULTS / "learning.png")
    file = RESULTS / "learning.md"
    # The text below the table stays.
    _, mark, rest = file.read_text().partition("\n## ") if file.exists() else ("", "", "")
    file.write_text(page(runs) + mark + rest)


def page(runs: Runs) -> str:
    commits = ", ".join(sorted({run["commit"] for repeats in runs.values() for run in repeats}))
    seeds = max(len(repeats) for repeats in runs.values())
    lines = [
        "# Every algorithm learns",
        "",
        "The same supervised warm start (a model of 64 wide, two layers, that writes rows of numbers), the",
        f"same number of generated tokens (supervised: tokens of references), {seeds} seeds; mean reward",
        "`increasing_numbers` on 64 validation prompts, four unmasked samples each; ± is the standard error",
        "over seeds. NLPO is measured twice: without its mask, as the exported model samples, and within it,",
        "as the policy that was trained. Settings: `RUNS` in `benchmarks/studies/learning.py`.",
        "",
        f"Commit {commits}, `python -m benchmarks.studies.learning && python -m benchmarks.studies.learning_report`.",
        "",
        "| model | algorithm | before | after | gain | after, within the mask | seconds a run |",
        "|---|---|---|---|---|---|---|",
    ]
    for (family, name), repeats in runs.items():
        before, after = ([run[key] for run in repeats] for key in ("before", "after"))
        gain = [b - a for a, b in zip(before, after, strict=True)]
        inside = [run["after_masked"] for run in repeats if run["after_masked"] is not None]
        took = statistics.fmean(run["seconds"] for run in repeats)
        lines.append(
            f"| {family} | {name} | {statistics.fmean(before):.3f} | {_with_error(after)} | "
            f"{_with_error(gain, '+')} | {_with_error(inside) if inside else ''} | {took:.0f} |"
        )
    return "\n".join([*lines, "", "![curves](learning.png)", ""])


def _with_error(values: Sequence[float], sign: str = "") -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):{sign}.3f} ± {error:.3f}"


def draw(runs: Runs, file: Path) -> None:
    """Draw the training rollouts' mean reward over tokens, averaged over seeds, a panel for each family."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    families = sorted({family for family, _ in runs})
    figure, axes = plt.subplots(1, len(families), figsize=(6.5 * len(families), 4.5), squeeze=False)
    for axis, family in zip(axes[0], families, strict=True):
        for key, repeats in runs.items():
            if key[0] != family or not repeats[0]["curve"]:
                continue
            points = [_smooth(run["curve"]) for run in repeats]
            length = min(len(curve) for curve in points)
            tokens = [statistics.fmean(curve[i][0] for curve in points) for i in range(length)]
            reward = [statistics.fmean(curve[i][1] for curve in points) for i in range(length)]
            axis.plot(tokens, reward, label=key[1], color=f"C{list(RUNS).index(key[1])}")
        axis.set(title=family, xlabel="generated tokens", ylabel="mean reward", ylim=(0, 1))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def _smooth(curve: Sequence[Sequence[float]], width: int = 5) -> list[tuple[float, float]]:
    return [
        (curve[i][0], statistics.fmean(point[1] for point in curve[max(0, i - width + 1) : i + 1]))
        for i in range(len(curve))
    ]


if __name__ == "__main__":
    main()
