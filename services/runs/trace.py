"""A run's timeline as a file in Chrome's trace format, for Perfetto and chrome://tracing.

    [
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "the learner"}},
    {"name": "update", "ph": "X", "pid": 1, "tid": 1, "ts": 1795459180250000, "dur": 800000},
    …
    ]

Lines are written during the run. The format allows a missing end, so even a killed run's file is readable.
"""

import contextlib
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from contracts.processes import timeline
from contracts.processes.timeline import MAIN, Span

log = logging.getLogger(__name__)

EVERY_S = 1.0  # time between two writes
COMMAND = "whetstone train"  # name of the process that writes


class Trace:
    """Writer of spans. It numbers processes and their lanes in the order of appearance."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._processes: dict[str, int] = {}
        self._lanes: dict[tuple[str, str], int] = {}
        self._is_first = True
        file.write("[")

    def write(self, spans: Sequence[Span]) -> None:
        for span in spans:
            process, lane = self._numbers(span)
            self._add(
                name=span.name,
                ph="X",
                pid=process,
                tid=lane,
                ts=round(span.began_s * 1e6),
                dur=round(span.lasted_s * 1e6),
            )
        self._file.flush()

    def end(self) -> None:
        self._file.write("\n]\n")

    def _numbers(self, span: Span) -> tuple[int, int]:
        """Return the numbers of a span's process and lane; name new ones."""
        name = span.process or COMMAND
        process = self._processes.setdefault(name, len(self._processes) + 1)
        if (name, span.lane) not in self._lanes:
            lane = self._lanes[name, span.lane] = 1 + sum(known == name for known, _ in self._lanes)
            if lane == 1:
                self._add(name="process_name", ph="M", pid=process, args={"name": name})
                self._add(name="process_sort_index", ph="M", pid=process, args={"sort_index": process})
            self._add(name="thread_name", ph="M", pid=process, tid=lane, args={"name": _shown(span.lane)})
        return process, self._lanes[name, span.lane]

    def _add(self, **event: Any) -> None:
        self._file.write("\n" if self._is_first else ",\n")
        self._file.write(json.dumps(event))
        self._is_first = False


def _shown(lane: str) -> str:
    """Return a lane's name for people, because Python's names of threads are technical.

    >>> _shown("MainThread"), _shown("Dummy-2"), _shown("engine")
    ('main', 'thread 2', 'engine')
    """
    return "main" if lane == MAIN else lane.replace("Dummy-", "thread ")


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Write this process's timeline, including spans from other processes, into a new file.

    A resumed run overwrites the file. If the timeline is off, write nothing. If it can't be written, warn and
    continue.
    """
    if not timeline.is_on():
        yield
        return
    is_over = threading.Event()

    def write_until_the_end() -> None:
        try:
            with path.open("w") as file:
                trace = Trace(file)
                while not is_over.wait(EVERY_S):
                    trace.write(timeline.drain())
                trace.write(timeline.drain())
                trace.end()
        except OSError as error:
            log.warning("the timeline %s can't be written: %s", path, error)

    thread = threading.Thread(target=write_until_the_end, name="trace", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
