"""The page and the picture of the results of `benchmarks.asynchronous`."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.asynchronous import ITERATIONS, KINDS, TEXT_S, found

PAGE, PICTURE = Path("docs/results/asynchronous.md"), Path("docs/images/asynchronous.png")
SEEDS = (0, 1, 2)
COLORS = ("#444444", "#1f6f8b", "#3a9d5d", "#c8553d")

TEXT = """# Writing ahead

`rollout.max_staleness=n` lets the workers write, and the reward servers score, while the learner
updates: a token may then be sampled by weights up to n updates old, and is weighed by how far the
policy has gone since.

The demo's model and task, 64 prompts an iteration, {iterations} iterations, a reward that takes
{ms:.0f} ms a text on four replicas; `whetstone train` for each run, one after the other, on two CPU
cores on which other work ran. Three seeds, ± the standard error. The first three iterations are not
counted in the sequences a second.

| | sequences a second | of synchronous | reward of the last five iterations |
|---|---|---|---|
{rows}

![The reward, iteration by iteration](../images/asynchronous.png)

What was found in {iterations} iterations: one iteration ahead costs nothing that three seeds can tell.
Four ahead learn less from each iteration: every batch was sampled from the policy of four or five
updates before, and at this learning rate that is far. Correcting the old tokens makes no difference
here; it keeps the ratio right and cannot make old samples new.

`python -m benchmarks.asynchronous && python -m benchmarks.asynchronous_report`
"""


def with_error(values: Sequence[float], digits: int) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.fmean(values):.{digits}f} ± {error:.{digits}f}"


def main() -> None:
    results = {kind: [found(kind, seed) for seed in SEEDS] for kind in KINDS}
    bare = [rate for rate, _, _ in results["synchronous"]]
    rows = []
    for kind, runs in results.items():
        ratios = [rate / other for (rate, _, _), other in zip(runs, bare, strict=True)]
        told = with_error(ratios, 2) if kind != "synchronous" else ""
        rates, ends = with_error([r[0] for r in runs], 1), with_error([r[1] for r in runs], 3)
        rows.append(f"| {kind} | {rates} | {told} | {ends} |")
    PAGE.write_text(TEXT.format(iterations=ITERATIONS, ms=TEXT_S * 1000, rows="\n".join(rows)))
    print(PAGE.read_text())
    draw({kind: [curve for _, _, curve in runs] for kind, runs in results.items()})


def draw(curves: dict[str, list[list[float]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    for (kind, found_here), color in zip(curves.items(), COLORS, strict=True):
        for curve in found_here:
            axes.plot(range(1, len(curve) + 1), curve, color=color, alpha=0.2, linewidth=1)
        mean = [statistics.fmean(values) for values in zip(*found_here, strict=True)]
        axes.plot(range(1, len(mean) + 1), mean, color=color, linewidth=2, label=kind)
    axes.set(xlabel="iteration of 64 rollouts", ylabel="reward", ylim=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(PICTURE, dpi=160)


if __name__ == "__main__":
    main()
