"""End a command at Ctrl-C, SIGTERM and SIGHUP.

    nothing to save                a signal interrupts at once; survivors after ENDS_WITHIN_S are killed
    between `hold` and `restore`   the first signal is a request: the loop stops at a whole state;
                                   the second interrupts, as above

One keystroke may arrive twice, once for the whole process group and once from a wrapper that forwards it. So
a signal within ECHO_S of another counts as the same request. As POSIX requires, signals that the parent
ignores stay ignored. A script's job with `&` ignores Ctrl-C; a job under `nohup` ignores its terminal's end.

In a process that outlives the command, such as a notebook's, nothing is killed. The command raises only a
KeyboardInterrupt, or a RunError if something necessary is gone.
"""

import contextlib
import logging
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from contracts.errors import RunError
from contracts.secrets.redaction import redact

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ECHO_S = 1.0
ENDS_WITHIN_S = 4.0
ENDS_ON_A_CLUSTER_WITHIN_S = 20.0  # time to remove reward servers
LOOK_S = 0.1
SHOW_CURSOR = b"\x1b[?25h\n"
EXIT_FAULT, EXIT_INTERRUPTED = 1, 130


class Interrupted(KeyboardInterrupt):
    """A requested stop; the run has saved or is about to save."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, which end the whole command, not only its current step."""


class Requests:
    """Filter that removes echoes of a stop request.

    >>> requests = Requests()
    >>> [requests.counts(at) for at in (10.0, 10.2, 10.9, 11.1)]
    [True, False, False, True]
    """

    def __init__(self) -> None:
        self._counted_at = -math.inf

    def counts(self, now: float) -> bool:
        """Return whether a signal at time `now` (in seconds) is a new request."""
        if now - self._counted_at < ECHO_S:
            return False
        self._counted_at = now
        return True


class Command:
    """A running command with its signal handlers, and a thread that ensures its end.

    Python runs a handler only between two steps of the main thread, which may be waiting inside a library.
    The thread receives signals at once through a pipe.
    """

    def __init__(self, name: str, ends_process: bool) -> None:
        self.name, self.ends_process = name, ends_process
        self.asked_by: int = signal.SIGINT  # the last signal
        self.failure = ""  # reason why a command inside a lasting process can't continue
        self.requests = Requests()  # counted by the handlers
        self.holder: StopRequest | None = None
        self.last_words: Callable[[], str] = lambda: ""
        self.is_for_others: set[int] = set()  # signals that do not end the command
        self.before = {number: signal.signal(number, self.interrupt) for number in heeded()}
        self._pipe, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._wakeup_before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="interrupts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Restore the earlier handlers and end the thread after the command's normal end."""
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self.before.items():
            signal.signal(number, handler)
        os.close(self._wakeup)  # the thread reads the end of the pipe and returns
        self._thread.join()
        os.close(self._pipe)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal if nothing must be saved."""
        if self.failure:
            raise KeyboardInterrupt
        self.asked_by = number
        if self.requests.counts(time.monotonic()):
            leave_terminal(number)
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    def last_line(self, reason: str = "interrupted") -> str:
        """Return the reason of the end and the saved state, without the command's name."""
        try:
            words = self.last_words()
        except Exception as error:  # last_words reads files, and no error may keep the command from ending
            words = f"what is saved could not be read: {error}"
        return redact(reason + (f"; {words}" if words else ""))

    def _watch(self) -> None:
        requests, asked_by = Requests(), None
        while number := self._next_signal(None):
            if number in self.is_for_others or not requests.counts(time.monotonic()):
                continue
            if self.holder is not None and (self.holder is not asked_by or self.holder.never_insists):
                asked_by = self.holder
                asked_by.tell()
            elif self.ends_process and self._outlasts_deadline():
                self.end(self.last_line(), EXIT_INTERRUPTED)

    def _next_signal(self, patience_s: float | None) -> int:
        """Return the next signal's number; 0 when the command has ended or `patience_s` is over."""
        if not select.select([self._pipe], [], [], patience_s)[0]:
            return 0
        number = os.read(self._pipe, 1)
        return number[0] if number else 0

    def _outlasts_deadline(self) -> bool:
        patience_s = ENDS_ON_A_CLUSTER_WITHIN_S if "RAY_ADDRESS" in os.environ else ENDS_WITHIN_S
        deadline = time.monotonic() + patience_s
        while (left_s := deadline - time.monotonic()) > 0:
            if select.select([self._pipe], [], [], left_s)[0] and not os.read(self._pipe, 1):
                return False
        return True

    def end(self, last_line: str, code: int) -> None:
        """Exit, and let a shell kill all child processes afterwards. If they died first, Ray would abort.

        In a lasting process, interrupt the main thread instead.
        """
        logging.getLogger().error("stopped: %s", last_line)
        if not self.ends_process:
            self.failure = last_line
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return
        import psutil

        with contextlib.suppress(OSError):
            if os.isatty(1):
                os.write(1, SHOW_CURSOR)  # a live screen hides it
            os.write(2, f"{self.name}: {last_line}\n".encode())
        family = " ".join(str(process.pid) for process in psutil.Process().children(recursive=True))
        if family:
            kill = ["/bin/sh", "-c", f"sleep 0.2; kill -9 {family}"]
            subprocess.Popen(
                kill, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
        os._exit(code)


_command: Command | None = None


_forking = threading.local()  # .mask: the thread's blocked signals before its fork


def _before_fork() -> None:
    """Block signals, because Python forgets signals that reach a forked process before its first step."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # first, because blocking may call a handler
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS if _command else ())


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _in_child() -> None:
    """Give a forked process the signal handlers from before the command, and detach it from the pipe.

    A reward may fork a pool of processes, which ends them by SIGTERM: our exception could leave a lock held.
    """
    if _command is not None:
        signal.set_wakeup_fd(-1)
        for number, handler in _command.before.items():
            if isinstance(getattr(signal.getsignal(number), "__self__", None), Command | StopRequest):
                signal.signal(number, handler)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


@contextlib.contextmanager
def interruptible(name: str, *, ends_process: bool = True) -> Iterator[Command | None]:
    """Handle signals for a whole command. Outside the main thread, do nothing.

    Args:
        ends_process: the process ends with the command.

    Raises:
        RunError: something necessary is gone, and the process lasts.
    """
    global _command
    if threading.current_thread() is not threading.main_thread() or _command is not None:
        yield None
        return
    _command = Command(name, ends_process)
    try:
        yield _command
    except KeyboardInterrupt:
        if _command.failure:
            raise RunError(_command.failure) from None
        raise
    finally:
        command, _command = _command, None
        command.close()


def on_interruption(last_words: Callable[[], str]) -> None:
    """Set the last words of an interrupted command: the saved state, and how to continue."""
    if _command is not None:
        _command.last_words = last_words


def last_line_of(name: str) -> str:
    """Return the last line of an interrupted command; "" if something necessary is gone instead."""
    if _command is None:
        return f"{name}: interrupted"
    return "" if _command.failure else f"{_command.name}: {_command.last_line()}"


def give_up(reason: str) -> None:
    """End the command and its child processes, because something necessary is gone and saving is impossible.

    Example: `give_up("Ray's raylet died")` says `whetstone train: Ray's raylet died; checkpoint 4 is whole`
    """
    if _command is not None:
        _command.end(_command.last_line(reason), EXIT_FAULT)


def leave_at_once() -> None:
    """End this process without Python's and its libraries' slow shutdown."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    logging.shutdown()
    os._exit(EXIT_INTERRUPTED)


def take_ctrl_c() -> None:
    """Let Ctrl-C raise KeyboardInterrupt only in the current step, such as an answer."""
    if signal.SIGINT in heeded():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if _command is not None:
        _command.is_for_others.add(signal.SIGINT)


def heeded() -> list[int]:
    """Return the signals to handle, without signals that the parent ignores."""
    return [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Restore the signal handlers afterwards, whatever the code inside sets."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: set outside of Python, which can't set it again
                signal.signal(number, handler)


def leave_terminal(number: int) -> None:
    """After SIGHUP, discard output to the lost terminal, because writing would raise an error."""
    if number != signal.SIGHUP:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if os.isatty(stream.fileno()):
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class StopRequest:
    """A requested stop; the loop checks for it and ends at a whole state.

    Args:
        tell: called at the first request in a separate thread, because the loop may notice late.
    """

    def __init__(self, tell: Callable[[], None] = lambda: None) -> None:
        self.tell = tell
        self.never_insists = False
        self._is_asked = False
        self._before: dict[int, Any] = {}
        self._at_request: Callable[[], None] = lambda: None
        self._requests = Requests()

    def hold(self, at_request: Callable[[], None] = lambda: None, *, never_insists: bool = False) -> None:
        """Make the first request stop the loop at its next `check`, and the second one interrupt.

        Args:
            at_request: called at each request.
            never_insists: no request interrupts, because another process knows it and ends by itself.
        """
        self._at_request, self.never_insists = at_request, never_insists
        for number in heeded():
            self._before[number] = signal.signal(number, self._ask)
        if _command is not None:
            _command.holder = self

    def restore(self) -> None:
        """Restore the signal handlers from before `hold`."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if _command is not None and _command.holder is self:
            _command.holder = None

    def check(self) -> None:
        """Raise Interrupted if a stop was requested."""
        if self._is_asked:
            raise Interrupted

    @property
    def is_asked(self) -> bool:
        """Return whether a stop was requested."""
        return self._is_asked

    def wait(self) -> None:
        """Wait until a stop is requested, then raise Interrupted."""
        while not self._is_asked:
            time.sleep(LOOK_S)
        raise Interrupted

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if _command is not None and _command.failure:
            raise KeyboardInterrupt
        if _command is not None:
            _command.asked_by = number
        requests = self._requests if _command is None else _command.requests
        if not requests.counts(time.monotonic()):
            return
        leave_terminal(number)
        insists, self._is_asked = self._is_asked and not self.never_insists, True
        self._at_request()
        if insists:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
