"""`whetstone train -m KEY=A,B …`: train with every combination of the values, and print a table."""

import itertools
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.errors import HydraException

from contracts.errors import InputError
from contracts.secrets.output import say
from contracts.secrets.redaction import redact
from contracts.secrets.secret_values import is_secret
from services.config.compose import run_settings
from services.config.override_words import parse
from services.runs.changes import REWARD
from services.runs.folder import RunFolder
from services.terminal.doing import doing
from services.terminal.interrupts import StopRequest
from services.terminal.readable import number, with_error
from services.training.preflight import preflight

IN_DEFAULT_NAME = ("task", "algorithm", "seed")  # these are in a run's default name


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a sweep.

    Example: `Job(("seed=1", "iterations=5"), "numbers-seed1", Path("runs/numbers-seed1"))`
    """

    overrides: tuple[str, ...]
    run_name: str
    folder: Path


def sweep(argv: list[str]) -> int:
    """Check every run of the sweep, then start one after another.

    A job that fails does not stop the others.

    Returns: 0 if all jobs finished, otherwise the first exit code that was not 0.

    Raises:
        InputError: a job is wrong; then no job was started.
    """
    with doing("checking all runs of the sweep"):
        planned = jobs(argv)
        for job in planned:
            preflight.check(run_settings(list(job.overrides)))
    codes = [start(job, number, len(planned)) for number, job in enumerate(planned, start=1)]
    _print_table(planned, codes)
    return next((code for code in codes if code != 0), 0)


def jobs(arguments: list[str]) -> list[Job]:
    """Return the combinations in the order of the command line; the last key changes fastest.

    Each run's name ends in its values, so that no two runs share a folder.

    Raises:
        InputError: two combinations would have the same folder.
    """
    combinations, swept = expand(arguments)
    planned = [_job(overrides, swept) for overrides in combinations]
    for first, second in itertools.combinations(planned, 2):
        if first.folder == second.folder:
            raise InputError(
                f"two runs of the sweep are both named {first.run_name}: {' '.join(first.overrides)} and "
                f"{' '.join(second.overrides)}. Is a value listed twice?"
            )
    return planned


def expand(arguments: list[str]) -> tuple[list[list[str]], list[str]]:
    """Return the overrides of each job, and the keys that have several values.

    >>> expand(["seed=0,1", "iterations=5"])
    ([['seed=0', 'iterations=5'], ['seed=1', 'iterations=5']], ['seed'])

    Raises:
        InputError: no `key=value`, or no key has several values.
    """
    parsed = [parse(text) for text in arguments]
    try:
        (combinations,) = BasicSweeper.split_arguments(parsed, None)
    except HydraException as error:  # not a list of values, for example interval(0, 1)
        raise InputError(f"train -m: {str(error).strip().splitlines()[0]}") from None
    swept = [override.key_or_group for override in parsed if override.is_sweep_override()]
    if not swept:
        raise InputError(
            "train -m: no key has several values; a sweep is written KEY=A,B. For one run leave out -m"
        )
    return combinations, swept


def _job(overrides: list[str], swept: list[str]) -> Job:
    settings = run_settings(overrides)
    named = any(override.startswith("run_name=") for override in overrides)
    values = dict(override.lstrip("+").split("=", 1) for override in overrides)
    if secret := next((key for key in swept if is_secret(key) or redact(values[key]) != values[key]), None):
        raise InputError(
            f"{secret}: a sweep's values become the names of its runs, so no secret can be in them"
        )
    told_apart = [key for key in swept if key != "run_name" and (named or key not in IN_DEFAULT_NAME)]
    parts = [f"{key.rpartition('.')[2]}-{values[key]}" for key in told_apart]
    # Keep letters of any script, marks and pictures. Unicode does not count the last two as letters.
    run_name = re.sub(r"[^\w.\x80-\U0010ffff-]+", "_", "-".join([settings.run_name, *parts]))
    others = [override for override in overrides if not override.startswith("run_name=")]
    return Job((*others, f'run_name="{run_name}"'), run_name, Path(settings.output_dir) / run_name)


def start(job: Job, number: int, total: int, command: str = "train") -> int:
    """Run the job in its own process, wait for it, and return its exit code.

    Args:
        command: subcommand of `whetstone` that gets the job's overrides.

    Raises:
        Interrupted: the sweep was asked to stop; the job was stopped, and has ended.
    """
    say(f"run {number} of {total}: {' '.join(job.overrides)}")
    stop, started = StopRequest(), list["subprocess.Popen[bytes]"]()

    def hand_on() -> None:
        """Tell the job to stop. The job counts this and the terminal's signal as one request."""
        for process in started:
            process.terminate()

    stop.hold(hand_on, never_insists=True)
    try:
        stop.check()
        started.append(
            subprocess.Popen([sys.executable, "-P", "-m", "services.cli", command, *job.overrides])
        )
        if stop.is_asked:  # the request came before the job could get it
            hand_on()
        code = started[0].wait()
    finally:
        stop.restore()
    stop.check()
    return code


def _print_table(planned: list[Job], codes: list[int]) -> None:
    from rich.table import Table

    from services.terminal.screens import Screen

    folders = [RunFolder(job.folder) for job in planned]
    earns = any(REWARD in row for folder in folders for row in folder.rollout_info()[-1:])
    what = "reward" if earns else "loss"
    caption = "± is the standard error over prompts" if earns else None
    table = Table(
        "run", "iterations", f"{what}, training", f"{what}, validation", "exit code", caption=caption
    )
    for job, folder, code in zip(planned, folders, codes, strict=True):
        table.add_row(job.run_name, *_results(folder, earns=earns), str(code))
    Screen().print(table)


def _results(folder: RunFolder, *, earns: bool) -> tuple[str, ...]:
    """Return the finished iterations, and the last rewards or losses; a dash if there are none."""
    rows, evaluations = folder.rollout_info(), folder.evaluations("validation")
    done = str(rows[-1]["iteration"]) if rows else "0"
    last = evaluations[-1]["metrics"] if evaluations else {}
    if earns:
        return done, _reward(rows[-1] if rows else {}), _reward(last)
    training = folder.training_info()[-1:]
    losses = training[0].get("loss/policy") if training else None, last.get("loss")
    return done, *map(number, losses)


def _reward(metrics: Mapping[str, Any]) -> str:
    """
    >>> _reward({"reward/mean": 0.5, "reward/standard_error": 0.02}), _reward({})
    ('0.500 ± 0.020', '–')
    """
    value = metrics.get(REWARD)
    return "–" if value is None else with_error(value, metrics.get("reward/standard_error"))
