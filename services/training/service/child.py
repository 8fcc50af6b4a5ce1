"""An object in its own process, which starts again after it died.

A server process that has imported the needed modules forks them, so a new one starts in a second.
"""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from contracts.errors import InputError, RunError
from contracts.processes.restart_budget import RestartBudget

MOST_STARTS = 10  # starts within an hour
IMPORTED = ["services.training.service.imported"]
ENDS_WITHIN_S = 5.0
ANSWERS_WITHIN_S = 3600.0  # a process that takes longer for a call counts as hanging


class ChildLost(RunError):
    """The process died during a call, and its state is lost."""


class ChildGivenUp(RunError):
    """The process died too often to start again."""


class Child:
    """A process that holds an object. Only one thread at a time may call it.

    Args:
        make: makes the object in the process; must be picklable.
        within_s: seconds after which a call's process is killed.

    Example: `Child("trainer", partial(Trainer, "gpt2", trains_whole=False)).call("names")`
    """

    def __init__(self, name: str, make: Callable[[], Any], within_s: float = ANSWERS_WITHIN_S) -> None:
        self._name, self._make, self._within_s = name, make, within_s
        self._budget = RestartBudget(MOST_STARTS, "the most starts", ChildGivenUp)
        self._process: Any = None
        self._pipe: Connection | None = None
        self.num_starts = 0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process if none runs, and wait until the object is made.

        Raises:
            InputError: the object can't be made.
            RunError: making it raised another error.
            ChildLost: the process died.
            ChildGivenUp: the process died too often.
        """
        if self._pipe is not None:
            return
        if self.num_starts:
            self._budget.spend(f"the {self._name}'s process died")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._make), name=self._name)
        process.start()
        theirs.close()
        self._pipe, self._process = ours, process
        self.num_starts += 1
        try:
            self._answer()
        except BaseException:
            self.stop()  # without the object it answers no call
            raise

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Return what the object's method returns.

        Raises:
            InputError: the method raised an InputError.
            RunError: the method raised another error.
            ChildLost: the process died, or hung and was killed.
        """
        self.start()
        assert self._pipe is not None, "a started child has a pipe"
        try:
            self._pipe.send((method, arguments, named))
        except OSError:
            raise self._lost() from None
        try:
            is_there = self._pipe.poll(self._within_s)
        except (OSError, ValueError):  # the pipe was closed because the service ends
            raise self._lost() from None
        if not is_there:
            self._process.kill()
            self.stop()
            raise ChildLost(
                f"the {self._name}'s process gave no answer for {self._within_s:g} s and was killed"
            )
        return self._answer()

    def stop(self) -> None:
        """Close the pipe, which ends the process; kill it if it does not end."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.join(ENDS_WITHIN_S)
            self._process.kill()
            self._process.join()
        self._pipe = None

    def _answer(self) -> Any:
        assert self._pipe is not None, "a started child has a pipe"
        try:
            state, value = self._pipe.recv()
        except Exception:  # an answer cut short may raise any error
            raise self._lost() from None
        if state == "input":
            raise InputError(value)
        if state == "failed":
            raise RunError(value)
        return value

    def _lost(self) -> ChildLost:
        self.stop()
        return ChildLost(f"the {self._name}'s process died (exit code {self._process.exitcode})")


def _serve(pipe: Connection, make: Callable[[], Any]) -> None:
    """Answer calls until the parent closes its end or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and closes the pipe
    with contextlib.suppress(EOFError, OSError):
        target: list[Any] = []
        if not _answered(pipe, lambda: target.append(make())):
            return
        while True:
            method, arguments, named = pipe.recv()
            _answered(pipe, lambda: getattr(target[0], method)(*arguments, **named))  # noqa: B023
    os._exit(0)  # threads of engines would keep the process alive


def _answered(pipe: Connection, act: Callable[[], Any]) -> bool:
    try:
        pipe.send(("done", act()))
    except InputError as error:
        pipe.send(("input", str(error)))
        return False
    except Exception as error:  # errors of a model or an engine are reported, not fatal
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
        return False
    return True
