"""`whetstone benchmark NAME`: chosen tasks, algorithms and seeds, one run after another, and a table.

tasks × algorithms × seeds ─▶ plan ─▶ checks ─▶ `whetstone train` for each that is not finished
                                                  └─ after each: NAME.md, NAME.csv, NAME.html
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from contracts.errors import InputError
from services.benchmarks.benchmark import Benchmark
from services.benchmarks.grue import GRUE
from services.benchmarks.offline import OFFLINE
from services.benchmarks.plan import ON_SUPERVISED, PlannedRun, left_out, plan, remaining
from services.benchmarks.rendering import write_tables
from services.benchmarks.table import RunResult, result_of
from services.doing import doing
from services.interrupts import Interrupted
from services.run_claim import make_writable
from services.sweep import start

BENCHMARKS = {benchmark.name: benchmark for benchmark in (GRUE, OFFLINE)}

EPILOG = """KEY=VALUE as in whetstone train, for every run; WHOSE:KEY=VALUE for those of a task, of an
algorithm, or of both. The same command goes on where it was interrupted; what is finished stays.

  whetstone benchmark grue --tasks imdb,commongen --algorithms ppo,nlpo --seeds 0,1,2,3,4
  whetstone benchmark grue --tasks imdb imdb:task.data_files=FOLDER model.path=gpt2 iterations=20
  whetstone benchmark grue --own-supervised imdb_nlpo:algorithm.top_p=0.8
  whetstone benchmark grue --table                     only the table, of what is there

  whetstone benchmark offline --tasks atomic,wow --algorithms nll,a_lol atomic:data=annotated/atomic \\
      atomic:model.path=COMET wow:data=annotated/wow wow:model.path=runs/wow-nll-seed0/model

An experiment is a file conf/experiment/TASK_ALGORITHM.yaml."""


def run(argv: Sequence[str]) -> int:
    """The command. Everything is checked, then one run after another is started; one that fails is told.

    Returns: 0 when all runs were done, else the first exit code that was not 0.

    Raises:
        InputError: anything that can be refused before the first run is started.
    """
    arguments = _parser().parse_intermixed_args(list(argv))
    benchmark = BENCHMARKS[arguments.benchmark]
    out = Path(arguments.out or f"runs/{benchmark.name}")
    tasks = benchmark.tasks if arguments.tasks is None else _names(arguments.tasks)
    algorithms = benchmark.algorithms if arguments.algorithms is None else _names(arguments.algorithms)
    without = _names(arguments.without)
    if arguments.own_supervised and not any(name.endswith(ON_SUPERVISED) for name in benchmark.algorithms):
        raise InputError(f"--own-supervised: no algorithm of {benchmark.name} begins with a supervised model")
    with doing("reading the experiments"):
        runs = plan(
            benchmark,
            tasks,
            algorithms,
            _seeds(arguments.seeds),
            out,
            arguments.overrides,
            arguments.own_supervised,
            without,
        )
    missing = sorted(set(left_out(tasks, algorithms, runs)) - set(without))
    if missing and arguments.algorithms is not None:
        print(f"no such experiment, so left out: {', '.join(missing)}")
    codes: dict[str, int] = {}
    if not arguments.table:
        with doing("checking the runs"):
            waiting = remaining(runs)
        print(f"{len(runs)} runs in {out}, of which {len(runs) - len(waiting)} are finished", flush=True)
        codes = _run_all(benchmark, waiting, runs, out)
    _finish(benchmark, runs, codes, out)
    return next((code for code in codes.values() if code != 0), 0)


def _run_all(
    benchmark: Benchmark, waiting: Sequence[PlannedRun], runs: Sequence[PlannedRun], out: Path
) -> dict[str, int]:
    """Every run's exit code, by its name; the tables are as new as the last run that ended."""
    make_writable(out)
    codes: dict[str, int] = {}
    for number, planned in enumerate(waiting, start=1):
        name = planned.job.run_name
        try:
            codes[name] = start(planned.job, number, len(waiting))
        except Interrupted:
            print(f"\n{name} has stopped. The same command goes on from here.", flush=True)
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


def _finish(benchmark: Benchmark, runs: Sequence[PlannedRun], codes: Mapping[str, int], out: Path) -> None:
    if not out.is_dir():
        raise InputError(f"{out}: there is no such folder, so there are no runs to make a table of")
    written = _write(benchmark, runs, codes, out)
    results = _results(benchmark, runs, codes)
    absent = [f"  {result.run.job.run_name}: {result.state}" for result in results if not result.after]
    if absent:
        print(f"{len(absent)} of {len(runs)} runs are not in the tables:", *absent, sep="\n")
    print("tables   ", *written)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in _names(text)]
    except ValueError:
        raise InputError(f"--seeds {text}: expected whole numbers, such as 0,1,2") from None


def _choices() -> str:
    return "; ".join(f"{name}: {benchmark.about}" for name, benchmark in BENCHMARKS.items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone benchmark",
        description="Train on every chosen task with every algorithm and seed; tabulate the test results.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benchmark", choices=BENCHMARKS, help=_choices())
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the runs")
    parser.add_argument("--tasks", metavar="A,B", help="default: the benchmark's")
    parser.add_argument("--algorithms", metavar="A,B", help="default: all that have experiments")
    parser.add_argument("--without", default="", metavar="A_B,…", help="experiments to leave out")
    parser.add_argument("--seeds", default="0,1,2", metavar="N,M", help="default: 0,1,2")
    parser.add_argument("--out", metavar="FOLDER", help="of all runs; default runs/NAME")
    parser.add_argument(
        "--own-supervised",
        action="store_true",
        help="grue: 'on supervised' begins with this benchmark's supervised model of the same seed",
    )
    parser.add_argument("--table", action="store_true", help="start nothing, only write the table")
    return parser
