"""Every algorithm's defaults at a hundredth, once and a hundred times the same reward, GPT and T5.

`python -m benchmarks.studies.reward_sizes` runs all, three seeds each, and writes benchmarks/out/reward_sizes.md
with its picture. Names of algorithms, `--families`, `--seeds`, `--factors` and `--tokens` run a part;
`--page` runs none.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.outcome import OUT
from benchmarks.studies.learning import Bench
from contracts.components import create
from learner.algorithms import ALGORITHMS
from learner.algorithms.base import Algorithm

# The published rates of GRPO and RLOO are those of models of billions of weights. All else is the defaults.
RATE = {"learning_rate": 1e-3}
RUNS: dict[str, dict[str, Any]] = {"ppo": {}, "a2c": {}, "trpo": {}, "nlpo": {}, "grpo": RATE, "rloo": RATE}
FACTORS, FAMILIES, TOKENS = (0.01, 1.0, 100.0), ("gpt", "t5"), 40_000
FILE = OUT / "reward_sizes.jsonl"
PAGE = Path(__file__).parents[2] / "benchmarks" / "out" / "reward_sizes.md"
Curve = Sequence[Sequence[float]]  # (tokens, mean reward)
Run = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(RUNS), metavar="ALGORITHM")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--factors", nargs="+", type=float, default=list(FACTORS))
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--page", action="store_true", help="only write the page")
    arguments = parser.parse_args()
    if not arguments.page:
        for family in arguments.families:
            for name in arguments.names:
                run(family, name, arguments.seeds, arguments.factors, arguments.tokens)
    write(read())


def run(family: str, name: str, seeds: Sequence[int], factors: Sequence[float], tokens: int) -> None:
    """Train one algorithm at each factor and seed; append a line for each run."""
    algorithm: Algorithm = create("algorithm", name, RUNS[name], ALGORITHMS, Algorithm)
    terminal, rule = Console(), algorithm.mask_rule() if algorithm.traits.masks else None
    bench = Bench(family, rule)
    for seed in seeds:
        for factor in factors:
            bench.factor = factor
            result = bench.run(name, seed, tokens, algorithm)
            after = result.after if result.after_masked is None else result.after_masked
            line = {
                "family": family,
                "name": name,
                "seed": seed,
                "factor": factor,
                "before": result.before,
                "after": after,
                "kl": result.metrics["kl/mean"],
                "curve": result.curve,
            }
            with FILE.open("a") as opened:
                opened.write(json.dumps(line) + "\n")
            change = f"{result.before:.3f} -> {after:.3f}"
            terminal.print(
                f"{family:4} {name:5} × {factor:<5g} seed {seed}  {change}  {result.seconds:.0f} s"
            )


def read() -> list[Run]:
    """Return the newest line of each run."""
    lines = [json.loads(line) for line in FILE.read_text().splitlines()]
    return list({(r["family"], r["name"], r["factor"], r["seed"]): r for r in lines}.values())


def write(runs: Sequence[Run]) -> None:
    """Write the table into the page, in front of its first heading, and the picture."""
    seeds = len({run["seed"] for run in runs})
    lines = [
        "# Rewards of any size",
        "",
        "The defaults of six algorithms, at 0.01, 1 and 100 times the reward `increasing_numbers`. Models",
        f"are those of [Every algorithm learns](learning.md); {TOKENS:,} tokens and {seeds} seeds. GRPO",
        "and RLOO have a learning rate of 1e-3; all else is the default. The table shows the mean reward of",
        "the validation prompts at the end, divided by the factor. ± is the standard error over seeds. NLPO",
        "is measured within its mask. *Agree*: an analysis of variance finds no difference at 95 %.",
        "`python -m benchmarks.studies.reward_sizes` repeats it.",
        "",
        "| model | algorithm | before | × 0.01 | × 1 | × 100 | KL at the end, × 0.01, 1, 100 | agree |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for family in FAMILIES:
        for name in RUNS:
            by_factor = [[r for r in runs if key_of(r) == (family, name, factor)] for factor in FACTORS]
            if all(by_factor):
                lines.append(row(family, name, by_factor))
    lines += ["", "![curves](reward_sizes.png)", ""]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("\n".join(lines))
    draw(runs, PAGE.with_suffix(".png"))


def key_of(run: Run) -> tuple[str, str, float]:
    return run["family"], run["name"], run["factor"]


def row(family: str, name: str, by_factor: Sequence[Sequence[Run]]) -> str:
    ends = [[run["after"] for run in runs] for runs in by_factor]
    kls = ", ".join(f"{statistics.fmean(run['kl'] for run in runs):.2f}" for runs in by_factor)
    before = statistics.fmean(run["before"] for runs in by_factor for run in runs)
    cells = " | ".join(f"{statistics.fmean(end):.3f} ± {error(end):.3f}" for end in ends)
    return f"| {family} | {name} | {before:.3f} | {cells} | {kls} | {'yes' if agree(ends) else 'no'} |"


def error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def agree(ends: Sequence[Sequence[float]]) -> bool:
    """Return whether an analysis of variance finds no difference between the factors, at 95 %."""
    from scipy.stats import f_oneway

    flat = {value for end in ends for value in end}
    return len(flat) == 1 or bool(f_oneway(*ends).pvalue > 0.05)


def draw(runs: Sequence[Run], file: Path) -> None:
    """Draw the curves of each algorithm and model: a colour a factor, the mean over seeds and its error."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(FAMILIES), len(RUNS), figsize=(3 * len(RUNS), 5.6), sharey=True, sharex=True
    )
    for axis_row, family in zip(axes, FAMILIES, strict=True):
        for axis, name in zip(axis_row, RUNS, strict=True):
            for color, factor in zip(("C0", "C1", "C2"), FACTORS, strict=True):
                curves = [r["curve"] for r in runs if key_of(r) == (family, name, factor)]
                if curves:
                    shade(axis, curves, color, f"reward × {factor:g}")
            axis.set_title(f"{name}, {family}", fontsize=10)
            axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8, loc="upper left")
    for axis_row in axes:
        axis_row[0].set_ylabel("mean reward / factor")
    for axis in axes[-1]:
        axis.set_xlabel("generated tokens")
    figure.tight_layout()
    figure.savefig(file, dpi=100)


def shade(axis: Any, curves: Sequence[Curve], color: str, label: str) -> None:
    length = min(map(len, curves))
    tokens = [statistics.fmean(curve[i][0] for curve in curves) for i in range(length)]
    means = [statistics.fmean(curve[i][1] for curve in curves) for i in range(length)]
    errors = [error([curve[i][1] for curve in curves]) for i in range(length)]
    axis.plot(tokens, means, color=color, label=label)
    low, high = ([m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
    axis.fill_between(tokens, low, high, color=color, alpha=0.2)


if __name__ == "__main__":
    main()
