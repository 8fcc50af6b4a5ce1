"""Calls with a time limit, each in a thread."""

import ctypes
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")
END_S = 1.0  # time for a call to end after its deadline


class _OutOfTime(BaseException):
    """Exception that ends a call from outside; the call's `except Exception` does not catch it."""


class TimedCalls:
    """Successive calls. After its time a call gets an exception; if that fails, it is abandoned.

    Example: `TimedCalls().call(lambda: 6 * 7, 5.0) == 42`
    """

    def __init__(self) -> None:
        self._left: list[threading.Thread] = []

    def call(self, function: Callable[[], Result], seconds: float) -> Result:
        """Return or raise what the function returns or raises.

        Raises:
            TimeoutError: the call took longer than `seconds`.
        """
        outcomes: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def work() -> None:
            try:
                outcomes.put((function(), None))
            except BaseException as error:  # raised again in the caller's thread
                outcomes.put((None, error))

        thread = threading.Thread(target=work, name="tool", daemon=True)
        thread.start()
        try:
            value, error = outcomes.get(timeout=seconds)
        except queue.Empty:
            self._end(thread)
            raise TimeoutError(f"no result within {seconds:g} s") from None
        if error is not None:
            raise error
        result: Result = value
        return result

    def num_left(self, wait_s: float = 0.0) -> int:
        """Return how many calls outlive their time and do not end within `wait_s`, either.

        Only the end of the process ends them.
        """
        until = time.monotonic() + wait_s
        for thread in self._left:
            thread.join(max(0.0, until - time.monotonic()))
        self._left = [thread for thread in self._left if thread.is_alive()]
        return len(self._left)

    def _end(self, thread: threading.Thread) -> None:
        """Raise an exception in the thread, as soon as it executes Python code again."""
        assert thread.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_OutOfTime))
        thread.join(END_S)
        self._left.append(thread)
