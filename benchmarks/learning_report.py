"""The table of `docs/results/learning.md` and its picture, from the results of `benchmarks.learning`."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning import RUNS
from benchmarks.outcome import OUT

RESULTS = Path(__file__).parents[1] / "docs" / "results"
Runs = dict[tuple[str, str], list[dict[str, Any]]]  # (family, algorithm) -> one for each seed


def main() -> None:
    newest = {}  # the last result of each run, as the file only grows
    for line in (OUT / "learning.jsonl").read_text().splitlines():
        found = json.loads(line)
        newest[found["family"], found["name"], found["seed"]] = found
    runs: Runs = {(family, name): [] for family in ("gpt", "t5") for name in RUNS}
    for (family, name, _), found in newest.items():
        runs[family, name].append(found)
    runs = {key: found for key, found in runs.items() if found}
    RESULTS.mkdir(exist_ok=True)
    draw(runs, RESULTS / "learning.png")
    file = RESULTS / "learning.md"
    # The text below the table stays.
    _, mark, told = file.read_text().partition("\n## ") if file.exists() else ("", "", "")
    file.write_text(page(runs) + mark + told)


def page(runs: Runs) -> str:
    commits = ", ".join(sorted({run["commit"] for found in runs.values() for run in found}))
    seeds = max(len(found) for found in runs.values())
    lines = [
        "# Every algorithm learns",
        "",
        "The same supervised warm start (a model of 64 wide, two layers, that writes rows of numbers), the",
        f"same number of generated tokens (supervised: tokens of references), {seeds} seeds; mean reward",
        "`increasing_numbers` on 64 validation prompts, four unmasked samples each; ± is the standard error",
        "over seeds. NLPO is measured twice: without its mask, as the exported model samples, and within it,",
        "as the policy that was trained. Settings: `RUNS` in `benchmarks/learning.py`.",
        "",
        f"Commit {commits}, `python -m benchmarks.learning && python -m benchmarks.learning_report`.",
        "",
        "| model | algorithm | before | after | gain | after, within the mask | seconds a run |",
        "|---|---|---|---|---|---|---|",
    ]
    for (family, name), found in runs.items():
        before, after = ([run[key] for run in found] for key in ("before", "after"))
        gain = [b - a for a, b in zip(before, after, strict=True)]
        inside = [run["after_masked"] for run in found if run["after_masked"] is not None]
        took = statistics.fmean(run["seconds"] for run in found)
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
        for key, found in runs.items():
            if key[0] != family or not found[0]["curve"]:
                continue
            points = [_smooth(run["curve"]) for run in found]
            length = min(len(each) for each in points)
            tokens = [statistics.fmean(each[i][0] for each in points) for i in range(length)]
            reward = [statistics.fmean(each[i][1] for each in points) for i in range(length)]
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
