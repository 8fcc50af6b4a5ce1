"""`whetstone benchmark NAME`: train on tasks with algorithms and seeds, one run after another, and tabulate.

tasks × algorithms × seeds ─▶ plan ─▶ checks ─▶ `whetstone train` for each unfinished run
                                                  └─ after each: NAME.md, NAME.csv, NAME.html
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import InputError
from services.studies.benchmarks.built_in import BENCHMARKS
from services.studies.benchmarks.plan import ON_SUPERVISED, left_out, plan, remaining
from services.studies.benchmarks.running import finish, run_all
from services.terminal.doing import doing
from services.terminal.options import names_in, seeds_in

EPILOG = """KEY=VALUE, as in whetstone train, applies to every run; WHOSE:KEY=VALUE to those of a task, an
algorithm, or an experiment. The same command continues after an interruption; finished runs stay.

  whetstone benchmark grue --tasks imdb,commongen --algorithms ppo,nlpo --seeds 0,1,2,3,4
  whetstone benchmark grue --tasks imdb imdb:task.data_files=FOLDER model.path=gpt2 iterations=20
  whetstone benchmark grue --own-supervised imdb_nlpo:algorithm.top_p=0.8
  whetstone benchmark grue --table                     only write the table of finished runs

  whetstone benchmark offline --tasks atomic,wow --algorithms nll,a_lol atomic:data=annotated/atomic \\
      atomic:model.path=COMET wow:data=annotated/wow wow:model.path=runs/wow-nll-seed0/model

TASK_ALGORITHM names the experiment: one of a file in conf/matrix/, or conf/experiment/TASK_ALGORITHM.yaml."""


def run(argv: Sequence[str]) -> int:
    """Check all runs, then start them in turn. Report a failed run and continue.

    Returns: 0 when all runs succeeded, else the first exit code that was not 0.

    Raises:
        InputError: an option, setting, model or data set is wrong; raised before the first run.
    """
    arguments = _parser().parse_intermixed_args(list(argv))
    benchmark = BENCHMARKS[arguments.benchmark]
    out = Path(arguments.out or f"runs/{benchmark.name}")
    tasks = benchmark.tasks if arguments.tasks is None else names_in(arguments.tasks)
    algorithms = benchmark.algorithms if arguments.algorithms is None else names_in(arguments.algorithms)
    without = names_in(arguments.without)
    if arguments.own_supervised and not any(name.endswith(ON_SUPERVISED) for name in benchmark.algorithms):
        raise InputError(f"--own-supervised: no algorithm of {benchmark.name} begins with a supervised model")
    with doing("reading the experiments"):
        runs = plan(
            benchmark,
            tasks,
            algorithms,
            seeds_in(arguments.seeds),
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
        codes = run_all(benchmark, waiting, runs, out)
    finish(benchmark, runs, codes, out)
    return next((code for code in codes.values() if code != 0), 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whetstone benchmark",
        description="Train on every chosen task with every algorithm and seed; tabulate the test results.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choices = "; ".join(f"{name}: {benchmark.about}" for name, benchmark in BENCHMARKS.items())
    parser.add_argument("benchmark", choices=BENCHMARKS, help=choices)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the runs")
    parser.add_argument("--tasks", metavar="A,B", help="default: the benchmark's")
    parser.add_argument("--algorithms", metavar="A,B", help="default: all that have experiments")
    parser.add_argument("--without", default="", metavar="A_B,…", help="experiments to leave out")
    parser.add_argument("--seeds", default="0,1,2", metavar="N,M", help="default: 0,1,2")
    parser.add_argument("--out", metavar="FOLDER", help="folder of all runs; default: runs/NAME")
    parser.add_argument(
        "--own-supervised",
        action="store_true",
        help="grue: 'on supervised' begins with this benchmark's supervised model of the same seed",
    )
    parser.add_argument("--table", action="store_true", help="start no run, only write the table")
    return parser
