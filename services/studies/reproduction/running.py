"""Run a reproduction's steps one after another, and write its page after each.

A step is a command in a separate process, as in `whetstone train -m`. Steps of --small run in this process
without Ray, because starting processes would take most of the time.
"""

from collections.abc import Callable, Sequence

from contracts.errors import WhetstoneError
from services.studies.reproduction.plan import Step
from services.terminal.interrupts import EXIT_INTERRUPTED, Interrupted
from services.training.train.sweep import start


def run_all(steps: Sequence[Step], after_each: Callable[[], object], *, here: bool) -> int:
    """Run each unfinished step. A failed step stops only steps that depend on it.

    Args:
        after_each: writes the page; with `here` it would take longer than the runs. Its error is reported,
            but neither ends the runs nor replaces a run's error.

    Returns: 0 when all succeeded, else the first exit code that was not 0.
    """
    waiting = steps_to_run(steps)
    codes: list[int] = []
    lost: list[Step] = []
    for number, step in enumerate(waiting, start=1):
        if before := next((failed for failed in lost if step.begins_with(failed)), None):
            print(f"{step.job.run_name} is left out: it begins with {before.job.run_name}", flush=True)
            lost.append(step)
            continue
        try:
            if here:
                print(f"run {number} of {len(waiting)}: {step.job.run_name}", flush=True)
                codes.append(_run_here(step))
            else:
                codes.append(start(step.job, number, len(waiting), step.command))
        except Interrupted:
            print(f"\n{step.job.run_name} has stopped. The same command continues.", flush=True)
            raise
        finally:
            if not here:
                _try_to(after_each)
        if codes[-1]:
            lost.append(step)
            print(f"{step.job.run_name} ended with exit code {codes[-1]}; the others go on", flush=True)
    return next((code for code in codes if code), 0)


def steps_to_run(steps: Sequence[Step]) -> list[Step]:
    """Return the unfinished steps, and the finished annotations that they read.

    A finished annotation takes seconds, and fails if its settings have changed.
    """
    undone = [step for step in steps if not step.is_done()]
    return [
        step
        for step in steps
        if step in undone or (step.command == "annotate" and any(other.begins_with(step) for other in undone))
    ]


def _try_to(write: Callable[[], object]) -> None:
    """Write the page; only report an error, because the command writes the page again at its end."""
    try:
        write()
    except Exception as error:
        print(f"the page can't be written now ({type(error).__name__}: {error}); the runs go on", flush=True)


def _run_here(step: Step) -> int:
    """Run one step in this process; report an error, and return the exit code."""
    from services.config.compose import run_settings
    from services.studies.annotation.annotate import annotate
    from services.studies.annotation.settings import settings_from
    from services.training.train.train import train

    overrides = list(step.job.overrides)
    try:
        if step.command == "annotate":
            annotate(settings_from([*overrides, "executor=here"]))
            return 0
        code = train(run_settings(overrides), here=True)
    except WhetstoneError as error:
        print(f"{step.job.run_name}: {error}", flush=True)
        return 1
    if code == EXIT_INTERRUPTED:
        raise Interrupted
    return code
