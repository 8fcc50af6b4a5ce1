"""The table of learning from data, from the results of `benchmarks.studies.offline`."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.studies.offline import BATCH, FOUND, RUNS, STEPS, Result
from benchmarks.studies.offline_data import BEST, NUM_TEST, SAMPLES

PAGE = Path(__file__).parents[2] / "benchmarks" / "out" / "offline.md"


def report(results: Sequence[Result]) -> str:
    """Return a table of means ± standard errors over seeds, and both orders."""
    newest = {(result.name, result.corrupted, result.seed): result for result in results}
    runs: dict[tuple[str, bool], list[Result]] = {}
    for (name, is_corrupted, _), result in newest.items():
        runs.setdefault((name, is_corrupted), []).append(result)
    names = [name for name in RUNS if any(key[0] == name for key in runs)]
    seeds = len({result.seed for result in newest.values()})
    commits = ", ".join(sorted({result.commit for result in newest.values()}))
    lines = [
        "# Learning from data whose best policy is known",
        "",
        f"Mean reward on {NUM_TEST} new prompts, {seeds} seeds, ± the standard error over seeds. All runs",
        f"begin at one warm start, which imitates the data set and earns {results[0].before:.3f}, and take",
        f"{STEPS} steps of {BATCH} answers at the same learning rate; the best policy earns {BEST}. Sampled:",
        f"{SAMPLES} answers a prompt at temperature 1. Left out: what an epoch never draws. Corrupted:",
        "half of the rewards are shuffled among their rows, by the seed; values stay. Data:",
        "`benchmarks/studies/offline_data.py`, model and settings: `benchmarks/studies/offline.py`.",
        "",
        f"Commit {commits}, `python -m benchmarks.studies.offline && python -m benchmarks.studies.offline_report`.",
        "",
        "| run | sampled | greedy | left out | corrupted: sampled | greedy | left out | seconds a run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        cells = [cell for side in (False, True) for cell in _cells(runs.get((name, side), []))]
        took = statistics.fmean(
            run.seconds for key, repeats in runs.items() if key[0] == name for run in repeats
        )
        lines.append(f"| {name} | {' | '.join(cells)} | {took:.0f} |")
    for is_corrupted, what in ((False, "Clean rewards"), (True, "Half of them corrupted")):
        there = [name for name in names if (name, is_corrupted) in runs]
        means = {name: statistics.fmean(run.sampled for run in runs[name, is_corrupted]) for name in there}
        order = sorted(means, key=lambda name: -means[name])
        if order:
            lines += [
                "",
                f"{what}, the best first: " + "; ".join(f"{name} {means[name]:.3f}" for name in order) + ".",
            ]
    return "\n".join([*lines, ""])


def _cells(runs: Sequence[Result]) -> tuple[str, str, str]:
    if not runs:
        return "", "", ""
    sampled, greedy = ([getattr(run, name) for run in runs] for name in ("sampled", "greedy"))
    return _with_error(sampled), _with_error(greedy), f"{statistics.fmean(r.share_dropped for r in runs):.0%}"


def _with_error(values: Sequence[float]) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ± {error:.3f}"


def main() -> None:
    results = [Result(**json.loads(line)) for line in FOUND.read_text().splitlines()]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
