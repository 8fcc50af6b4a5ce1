"""Run a benchmark's training runs one after another, and write its tables after each."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from contracts.errors import InputError
from services.runs.claim import make_writable
from services.studies.benchmarks.benchmark import Benchmark
from services.studies.benchmarks.plan import PlannedRun
from services.studies.benchmarks.rendering import write_tables
from services.studies.benchmarks.table import RunResult, result_of
from services.terminal.interrupts import Interrupted
from services.training.train.sweep import start


def run_all(
    benchmark: Benchmark, waiting: Sequence[PlannedRun], runs: Sequence[PlannedRun], out: Path
) -> dict[str, int]:
    """Run each waiting run, write the tables after each, and return the exit codes by run name."""
    make_writable(out)
    codes: dict[str, int] = {}
    for number, planned in enumerate(waiting, start=1):
        name = planned.job.run_name
        try:
            codes[name] = start(planned.job, number, len(waiting))
        except Interrupted:
            print(f"\n{name} has stopped. The same command continues.", flush=True)
            raise
        finally:
            _write(benchmark, runs, codes, out)
        if codes[name] != 0:
            print(f"{name} ended with exit code {codes[name]}; the others go on", flush=True)
    return codes


def _results(benchmark: Benchmark, runs: Sequence[PlannedRun], codes: Mapping[str, int]) -> list[RunResult]:
    return [result_of(benchmark.measure, run, codes.get(run.job.run_name)) for run in runs]


def _write(
    benchmark: Benchmark, runs: Sequence[PlannedRun], codes: Mapping[str, int], out: Path
) -> list[Path]:
    return write_tables(benchmark, _results(benchmark, runs, codes), out)


def finish(benchmark: Benchmark, runs: Sequence[PlannedRun], codes: Mapping[str, int], out: Path) -> None:
    """Write the tables, and print their paths and missing runs.

    Raises:
        InputError: the folder `out` does not exist.
    """
    if not out.is_dir():
        raise InputError(f"{out}: there is no such folder, so there are no runs to make a table of")
    written = _write(benchmark, runs, codes, out)
    results = _results(benchmark, runs, codes)
    absent = [f"  {result.run.job.run_name}: {result.state}" for result in results if not result.after]
    if absent:
        print(f"{len(absent)} of {len(runs)} runs are not in the tables:", *absent, sep="\n")
    print("tables   ", *written)
