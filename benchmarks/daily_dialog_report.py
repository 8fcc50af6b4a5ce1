"""The table of `docs/results/daily_dialog.md` and its picture, from the folders of the runs.

`python -m benchmarks.daily_dialog_report "SETTING=FOLDER,FOLDER" …`, with a folder for each seed.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from services.runs.folder import RunFolder

BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
RESULTS = Path(__file__).parents[1] / "docs" / "results"
COLUMNS = {  # metrics of an evaluation
    "reward": "reward/mean",
    "intent": "reward/intent_accuracy/mean",
    "METEOR": "reward/meteor/mean",
    "ROUGE-1": "lexical/rouge_rouge1",
    "ROUGE-Lsum": "lexical/rouge_rougeLsum",
    "SacreBLEU": "lexical/sacrebleu",
    "length": "response_length/mean",
}
PANELS = {  # metrics of the iterations
    "reward, weighted": "reward/mean",
    "intent": "reward/intent_accuracy/mean",
    "METEOR": "reward/meteor/mean",
    "KL, nats a token": "kl/mean",
    "its coefficient α": "kl/coefficient",
    "tokens of a reply": "response_length/mean",
}
Runs = dict[str, list[RunFolder]]  # setting -> a folder for each seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("settings", nargs="+", metavar="SETTING=FOLDER,FOLDER")
    given = (setting.partition("=") for setting in parser.parse_args().settings)
    runs: Runs = {name: [RunFolder(Path(each)) for each in folders.split(",")] for name, _, folders in given}
    draw(runs, RESULTS / "daily_dialog.png")
    file = RESULTS / "daily_dialog.md"
    # The text before and after the table stays.
    before, _, rest = file.read_text().partition(BEGIN)
    file.write_text(before + BEGIN + table(runs) + END + rest.partition(END)[2])


def table(runs: Runs) -> str:
    """Return the table of both held-out splits, before and after; ± is the standard error."""
    lines = [f"| setting | split | | {' | '.join(COLUMNS)} |", "|---" * (3 + len(COLUMNS)) + "|"]
    for name, folders in runs.items():
        for split in ("validation", "test"):
            for when, index in (("before", 0), ("after", -1)):
                found = [folder.evaluations(split)[index]["metrics"] for folder in folders]
                cells = [_with_error([each[key] for each in found]) for key in COLUMNS.values()]
                if len(found) == 1:
                    cells[0] += f" ± {found[0]['reward/standard_error']:.3f}"
                lines.append(f"| {name} | {split} | {when} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _with_error(values: Sequence[float]) -> str:
    places = 1 if values[0] > 2 else 3
    if len(values) < 2 or len(set(values)) == 1:
        return f"{statistics.fmean(values):.{places}f}"
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.fmean(values):.{places}f} ± {error:.{places}f}"


def draw(runs: Runs, file: Path) -> None:
    """Draw six metrics, smoothed over five iterations: seeds as thin lines, their mean as a thick one."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(13, 7))
    for axis, (title, key) in zip(axes.flat, PANELS.items(), strict=True):
        for color, (name, folders) in enumerate(runs.items()):
            curves = [_smooth([row[key] for row in folder.rollout_info()]) for folder in folders]
            for curve in curves if len(curves) > 1 else ():
                axis.plot(range(1, len(curve) + 1), curve, color=f"C{color}", alpha=0.3, linewidth=0.8)
            mean = [statistics.fmean(values) for values in zip(*curves, strict=False)]
            axis.plot(range(1, len(mean) + 1), mean, color=f"C{color}", label=name)
        axis.set(title=title, xlabel="iteration")
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def _smooth(curve: Sequence[float], width: int = 5) -> list[float]:
    return [statistics.fmean(curve[max(0, i - width + 1) : i + 1]) for i in range(len(curve))]


if __name__ == "__main__":
    main()
