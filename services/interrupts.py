"""Ctrl-C and SIGTERM as a request that the loop looks at, so that it stops where its state is whole."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """A stop was asked for, and everything is saved or about to be."""


class StopRequest:
    """From `install` to `restore` a signal interrupts at once: what only starts has nothing to save.

    After `hold` the first one only asks, and the second one interrupts.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, signal.default_int_handler)

    def hold(self) -> None:
        for number in self._before:
            signal.signal(number, self._ask)

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def check(self) -> None:
        """Raise Interrupted if a stop was asked for."""
        if self._asked.is_set():
            raise Interrupted

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked.set()
        signal.signal(number, signal.default_int_handler)
