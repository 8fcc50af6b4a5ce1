"""A thread that writes to one tracker of runs, such as MLflow, and never stops or slows the run.

    caller ──▶ queue (bounded) ──▶ one thread: open the tracker, write one job after another, close it

A failed job is counted, reported once and dropped, because the run's JSON Lines files hold the same
numbers.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

MAX_PENDING = 1000  # jobs; with one per iteration, reached only when the server hangs for long
FINISH_S = 30.0

T = TypeVar("T")


class Background(Generic[T]):
    """Thread that opens a tracker and writes jobs to it.

    Args:
        name: name of the tracker in messages, such as "MLflow at http://…".
        open_tracker: called first, in the thread; every job gets its result.
        close_tracker: called last, in the thread.

    Example: `Background("TensorBoard", open_writer, lambda writer: writer.close())`
    """

    def __init__(self, name: str, open_tracker: Callable[[], T], close_tracker: Callable[[T], None]) -> None:
        self.name = name
        self.num_failures = 0
        self._open, self._close = open_tracker, close_tracker
        self._jobs: queue.Queue[Callable[[T], None] | None] = queue.Queue(MAX_PENDING)
        self._may_open, self._opened = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)

    def start(self, *, at_once: bool = True) -> None:
        """Start the thread; jobs may be added before the tracker is open.

        Args:
            at_once: False: the thread waits for `open`, to leave time to others.
        """
        self._thread.start()
        if at_once:
            self.open()

    def open(self) -> None:
        """Let the thread open the tracker."""
        self._may_open.set()

    def wait_until_open(self, seconds: float) -> None:
        """Wait until the tracker is open or can't be opened, at most `seconds`."""
        self.open()
        self._opened.wait(seconds)

    def add(self, job: Callable[[T], None]) -> None:
        """Add a job to the queue without waiting. Drop it if the queue is full or the thread has ended."""
        if not self._thread.is_alive():
            return
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self._fail(f"{MAX_PENDING} entries wait to be written")

    def finish(self, patience_s: float | None = None) -> None:
        """Write the pending jobs and close the tracker; wait at most `patience_s`, by default FINISH_S."""
        if not self._thread.is_alive():
            return
        self.open()
        wait_s = FINISH_S if patience_s is None else patience_s
        deadline = time.monotonic() + wait_s
        with contextlib.suppress(queue.Full):
            self._jobs.put(None, timeout=wait_s)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            log.warning(
                "%s did not take the run's last entries within %.0f s; the run's folder has them all",
                *(self.name, wait_s),
            )

    def _work(self) -> None:
        self._may_open.wait()
        try:
            tracker = self._open()
        except Exception as error:  # no error of a tracker or its server may end the run
            self._fail(f"{type(error).__name__}: {error}")
            return
        finally:
            self._opened.set()
        while (job := self._jobs.get()) is not None:
            self._try(job, tracker)
        self._try(self._close, tracker)

    def _try(self, job: Callable[[T], None], tracker: T) -> None:
        try:
            job(tracker)
        except Exception as error:  # a full disk or a lost server must not end the run
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        self.num_failures += 1
        if self.num_failures == 1:
            first_line = reason.strip().split("\n")[0]  # without the SQL that follows
            log.warning("%s fails, the run continues without it: %s", self.name, first_line)
