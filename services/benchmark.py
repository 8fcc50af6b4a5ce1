"""`whetstone benchmark grue`: chosen tasks, algorithms and seeds, one run after another, and a table.

tasks × algorithms × seeds ─▶ plan ─▶ checks ─▶ `whetstone train` for each that is not finished
                                                  └─ after each: grue.md, grue.csv, grue.html
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import InputError
from services.grue.plan import ALGORITHMS, TASKS, PlannedRun, left_out, plan, remaining
from services.grue.rendering import write_tables
from services.grue.table import result_of
from services.run_claim import make_writable
from services.sweep import start

EPILOG = """KEY=VALUE as in whetstone train, for every run; WHOSE:KEY=VALUE for those of a task, of an
algorithm, or of both. The same command goes on where it was interrupted; what is finished stays.

  whetstone benchmark grue --tasks imdb,commongen --algorithms ppo,nlpo --seeds 0,1,2,3,4
  whetstone benchmark grue --tasks imdb imdb:task.data_files=FOLDER model.path=gpt2 iterations=20
  whetstone benchmark grue --own-supervised imdb_nlpo:algorithm.top_p=0.8
  whetstone benchmark grue --table                     only the table, of what is there

An experiment is a file conf/experiment/TASK_ALGORITHM.yaml."""


def run(argv: Sequence[str]) -> int:
    """The command. Everything is checked, then one run after another is started; one that fails is told.

    Returns: 0 when all runs were done, else the first exit code that was not 0.

    Raises:
        InputError: anything that can be refused before the first run is started.
    """
    arguments = _parser().parse_intermixed_args(list(argv))
    out = Path(arguments.out)
    tasks, algorithms = _names(arguments.tasks), _names(arguments.algorithms)
    seeds = _seeds(arguments.seeds)
    without = _names(arguments.without)
    runs = plan(tasks, algorithms, seeds, out, arguments.overrides, arguments.own_supervised, without)
    if missing := sorted(set(left_out(tasks, algorithms, runs)) - set(without)):
        print(f"no such experiment, so left out: {', '.join(missing)}")
    codes: dict[str, int] = {}
    if not arguments.table:
        waiting = remaining(runs)
        print(f"{len(runs)} runs in {out}, of which {len(runs) - len(waiting)} are finished", flush=True)
        codes = _run_all(waiting, runs, out)
    _finish(runs, codes, out)
    return next((code for code in codes.values() if code != 0), 0)


def _run_all(waiting: Sequence[PlannedRun], runs: Sequence[PlannedRun], out: Path) -> dict[str, int]:
    """Every run's exit code, by its name; the tables are as new as the last run that ended."""
    make_writable(out)
    codes: dict[str, int] = {}
    for number, planned in enumerate(waiting, start=1):
        name = planned.job.run_name
        try:
            codes[name] = start(planned.job, number, len(waiting))
        except KeyboardInterrupt:
            print("\nStopped and saved. The same command goes on from here.")
            raise
        finally:
            _write(runs, codes, out)
        if codes[name] != 0:
            print(f"{name} ended with exit code {codes[name]}; the others go on", flush=True)
    return codes


def _write(runs: Sequence[PlannedRun], codes: dict[str, int], out: Path) -> list[Path]:
    return write_tables([result_of(run, codes.get(run.job.run_name)) for run in runs], out)


def _finish(runs: Sequence[PlannedRun], codes: dict[str, int], out: Path) -> None:
    if not out.is_dir():
        raise InputError(f"{out}: there is no such folder, so there are no runs to make a table of")
    written = _write(runs, codes, out)
    results = [result_of(run, codes.get(run.job.run_name)) for run in runs]
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone benchmark",
        description="Train on every chosen task with every algorithm and seed; tabulate the test results.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benchmark", choices=("grue",), help="RL4LMs' seven tasks")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the runs")
    parser.add_argument("--tasks", default=",".join(TASKS), metavar="A,B", help="default: GRUE's seven")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS), metavar="A,B", help="default: all 5")
    parser.add_argument("--without", default="", metavar="A_B,…", help="experiments to leave out")
    parser.add_argument("--seeds", default="0,1,2", metavar="N,M", help="default: 0,1,2")
    parser.add_argument("--out", default="runs/grue", metavar="FOLDER", help="of all runs; default runs/grue")
    parser.add_argument(
        "--own-supervised",
        action="store_true",
        help="'on supervised' begins with this benchmark's supervised model of the same seed",
    )
    parser.add_argument("--table", action="store_true", help="start nothing, only write the table")
    return parser
