"""Compute the table from run folders: the mean over seeds and its error for each task, algorithm and metric.

The numbers come from the test split, after the last iteration and before the first. Unfinished runs are
listed but do not count.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from services.runs.folder import RunFolder
from services.studies.benchmarks.benchmark import Measure
from services.studies.benchmarks.plan import PlannedRun, is_finished

SPLIT = "test"
NO_RESULT = "reward/standard_error"  # error over one run's texts; the table shows the error over seeds


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean over runs, one a seed; the standard error is None if unknown.

    Example: `Estimate(mean=0.5, standard_error=0.1, num_runs=3)`
    """

    mean: float
    standard_error: float | None
    num_runs: int  # seeds, never prompts
    over: Literal["seeds", "prompts"] = "seeds"  # what the standard error is over


@dataclass(frozen=True, slots=True)
class Cell:
    """Estimates of one algorithm's metric after training and, if measured, before it."""

    after: Estimate
    before: Estimate | None


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run's results. `state` is for people: "finished", "12 of 50 iterations", "not started"."""

    run: PlannedRun
    state: str
    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TaskTable:
    """Results on one task: `cells[metric][algorithm]`, both in the order of appearance."""

    task: str
    algorithms: tuple[str, ...]
    num_runs: Mapping[str, tuple[int, int]]  # runs by algorithm: finished, planned
    cells: Mapping[str, Mapping[str, Cell]]


def result_of(measure: Measure, run: PlannedRun, exit_code: int | None = None) -> RunResult:
    """Read a run's results from its folder; add the exit code of a run started now."""
    folder = run.folder
    if not folder.config_file.exists():
        return RunResult(
            run, "not started" if exit_code is None else f"failed, exit code {exit_code}", {}, {}
        )
    iterations = int(folder.config()["iterations"])
    if not is_finished(folder, iterations):
        rows = folder.rollout_info()
        state = f"{rows[-1]['iteration'] if rows else 0} of {iterations} iterations"
        if exit_code:
            state = f"failed after {state}, exit code {exit_code}"
        return RunResult(run, state, {}, {})
    after = measure(folder, iterations)
    return RunResult(run, "finished" if after else "finished, no test", measure(folder, 0), after)


def metrics_at(folder: RunFolder, epoch: int) -> dict[str, float]:
    """Return the finite numbers of the test evaluation after `epoch` iterations."""
    for row in folder.evaluations(SPLIT):
        if row["epoch"] == epoch:
            return {
                key: float(value)
                for key, value in row["metrics"].items()
                if isinstance(value, int | float) and math.isfinite(value) and key != NO_RESULT
            }
    return {}


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return the mean and standard error of finite values; None without values.

    >>> estimate([1.0, 2.0, 6.0])  # variance (4 + 1 + 9) / 2 = 7, standard error √(7 / 3)
    Estimate(mean=3.0, standard_error=1.5275252316519468, num_runs=3, over='seeds')
    >>> estimate([1.0])
    Estimate(mean=1.0, standard_error=None, num_runs=1, over='seeds')
    """
    if not values:
        return None
    spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Estimate(statistics.fmean(values), spread, len(values))


def tables(results: Sequence[RunResult]) -> list[TaskTable]:
    """Return a table for each task with runs, finished or not."""
    by_task: dict[str, dict[str, list[RunResult]]] = {}
    for result in results:
        by_task.setdefault(result.run.task, {}).setdefault(result.run.algorithm, []).append(result)
    return [_table(task, by_algorithm) for task, by_algorithm in by_task.items()]


def _table(task: str, by_algorithm: Mapping[str, Sequence[RunResult]]) -> TaskTable:
    metrics = dict.fromkeys(
        metric for results in by_algorithm.values() for result in results for metric in result.after
    )
    cells: dict[str, dict[str, Cell]] = {metric: {} for metric in metrics}
    for algorithm, results in by_algorithm.items():
        for metric in metrics:
            after = estimate([result.after[metric] for result in results if metric in result.after])
            before = estimate([result.before[metric] for result in results if metric in result.before])
            if after is not None:
                cells[metric][algorithm] = Cell(after, before)
    num_runs = {
        algorithm: (sum(bool(result.after) for result in results), len(results))
        for algorithm, results in by_algorithm.items()
    }
    return TaskTable(task, tuple(by_algorithm), num_runs, cells)
