"""Run a command in the caller's own process, and leave the process as it was.

Whetstone's packages and Ray are imported only here, when a call runs.
"""

import asyncio
import contextlib
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from whetstone.as_before import as_before
from whetstone.command import EXIT_INPUT
from whetstone.errors import InputError, RunError
from whetstone.own_place import MORE_FOLDERS, are_names_ours, folders_of_modules

if TYPE_CHECKING:
    from whetstone.objects import Objects

Result = TypeVar("Result")

_is_ray_prepared = False  # Ray read variables at its import, after we set them


def why_not_here() -> str:
    """Return why this process and thread can't do a run; "" if they can."""
    ray = sys.modules.get("ray")
    if threading.current_thread() is not threading.main_thread():
        return "this is not the main thread, which alone gets Ctrl-C"
    if not are_names_ours():
        return "packages here have the names of Whetstone's"
    if ray is not None and getattr(ray, "is_initialized", bool)():
        return "Ray is connected here already"
    if ray is not None and not _is_ray_prepared:
        return "Ray was imported here before, without the settings that keep its ports on this machine"
    return ""


def run_here(words: Sequence[str], objects: "Objects", run: Callable[[], Result]) -> Result:
    """Run a command in these words of the command line; hold the objects meanwhile.

    Raises:
        InputError, RunError: the command refused its input, or failed.
        KeyboardInterrupt: it was interrupted, and has saved.
    """
    global _is_ray_prepared
    number: int = signal.SIGINT
    try:
        with as_before(), outside_of_loops():
            sys.argv = ["whetstone", *words]
            os.environ[MORE_FOLDERS] = folders_of_modules()
            from services.cluster.ray_variables import prepare_ray
            from services.terminal.interrupts import interruptible

            prepare_ray()
            _is_ray_prepared = _is_ray_prepared or "ray" not in sys.modules
            with interruptible(_command_of(words), ends_process=False) as command:
                try:
                    return _guarded(words, objects, run)
                finally:
                    number = command.asked_by if command is not None else number
    except SystemExit as stop:
        if stop.code == EXIT_INPUT:  # by argparse, which has printed why
            raise InputError(f"{_command_of(words)}: got arguments that it does not take") from stop
        raise RunError(f"unexpected SystemExit: {stop.code}") from stop
    except Exception as error:
        original = _original_of(error)
        if original is error:
            raise
        raise original from error
    finally:
        _hand_on(number)


def _command_of(words: Sequence[str]) -> str:
    return " ".join(["whetstone", *words[:1]])


def _original_of(error: Exception) -> Exception:
    """Return the error itself, the error of another process inside it, or a RunError that describes it."""
    original = getattr(error, "cause", None)  # Ray's, as in services.cli, whose import may have failed
    for known in (original, error):
        if isinstance(known, RunError | InputError):
            return known
    return RunError(f"unexpected {type(error).__name__}: {error}")


def _hand_on(number: int) -> None:
    """Give the process a signal that was meant to end it, and not the run alone."""
    if number != signal.SIGINT:
        signal.raise_signal(number)


def _guarded(words: Sequence[str], objects: "Objects", run: Callable[[], Result]) -> Result:
    from contracts.objects import held
    from contracts.secrets.output import guarded_output
    from contracts.secrets.redaction import remember_typed
    from services.cli import write_to_log
    from services.runs import claim
    from services.runs.tracking.run_log import close_log
    from services.terminal.interrupts import last_line_of

    remember_typed(list(words))
    with guarded_output(), held(objects.packed, objects.values), contextlib.ExitStack() as ends:
        ends.callback(claim.let_go)
        ends.callback(close_log)
        try:
            return run()
        except KeyboardInterrupt:
            if line := last_line_of(_command_of(words)):
                print(line, file=sys.stderr)
            raise
        except Exception as error:
            write_to_log("".join(traceback.format_exception(error)))
            raise


def command_here(words: Sequence[str], objects: "Objects") -> str:
    """Run a command, and return its standard output."""
    printed = io.StringIO()

    def run() -> str:
        from services.cli import dispatch

        with contextlib.redirect_stdout(printed):
            dispatch(list(words))
        return printed.getvalue()

    return run_here(words, objects, run)


@contextlib.contextmanager
def outside_of_loops() -> Iterator[None]:
    """Let this thread's code run new event loops, although a notebook's kernel runs one here.

    Afterwards the thread has its former loop again: `asyncio.run` leaves none.
    """
    running = asyncio._get_running_loop()
    of_thread = vars(getattr(asyncio.get_event_loop_policy(), "_local", threading.local()))
    before = dict(of_thread)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        of_thread.clear()
        of_thread.update(before)
        asyncio._set_running_loop(running)
