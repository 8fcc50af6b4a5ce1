"""Timeline of a process: spans of its work from start to end, for one trace of a whole run.

    with span("update"): …  ─▶ kept here ─▶ drain(), in a reply ─▶ receive(process, spans) ─▶ the trace

The timeline is off until `switch_on`; a span then costs a function call and keeps nothing. An actor's spans
travel with the replies that it sends anyway. `services/runs/trace.py` writes them.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import TracebackType

import psutil

VARIABLE = "WHETSTONE_TIMELINE"  # set for the actors of a run that writes a timeline
MAIN = threading.main_thread().name
MOST_KEPT = 100_000  # most kept spans; above it the oldest go, if nothing drains them


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a process's work.

    Example: the learner's update of 0.8 s: `Span("update", "calls", 1795459180.25, 0.8, "the learner")`
    """

    name: str
    lane: str  # thread, or any other line of work whose spans contain one another or do not touch
    began_s: float  # Unix time
    lasted_s: float
    process: str = ""  # "": the process that recorded it


_kept: deque[Span] | None = None  # None: the timeline is off
_taken: dict[str, set[int]] = {}  # numbers of the lanes in use
_turn = threading.Lock()
_NOTHING = contextlib.nullcontext()


def switch_on() -> None:
    """Keep spans from now on. The first one is this process's start: Python and imports."""
    global _kept
    if _kept is None:
        _kept = deque(maxlen=MOST_KEPT)
        began = psutil.Process().create_time()
        add("process starts", began, time.time() - began, MAIN)


def switch_on_where_asked() -> None:
    """Keep spans if the run writes a timeline; every actor of a run calls this first."""
    if VARIABLE in os.environ:
        switch_on()


def is_on() -> bool:
    """Return whether this process keeps spans."""
    return _kept is not None


def variable() -> dict[str, str]:
    """Return the environment variable that makes actors keep spans, too; {} if the timeline is off."""
    return {VARIABLE: "1"} if is_on() else {}


def span(name: str, lane: str | None = None) -> AbstractContextManager[None]:
    """Keep the context as a span, in the calling thread's lane by default."""
    return _NOTHING if _kept is None else _Recording(name, lane or threading.current_thread().name)


@contextlib.contextmanager
def _in_free_lane(name: str, lanes: str) -> Iterator[None]:
    with _turn:
        taken = _taken.setdefault(lanes, set())
        number = next(n for n in range(1, len(taken) + 2) if n not in taken)
        taken.add(number)
    try:
        with span(name, f"{lanes} {number}"):
            yield
    finally:
        with _turn:
            taken.discard(number)


def span_beside(name: str, lanes: str) -> AbstractContextManager[None]:
    """Keep the context as a span beside others of its kind, in the first free lane of `lanes`."""
    return _NOTHING if _kept is None else _in_free_lane(name, lanes)


def add(name: str, began_s: float, lasted_s: float, lane: str | None = None) -> None:
    """Keep a span that was measured elsewhere, if the timeline is on."""
    if _kept is not None:
        _kept.append(Span(name, lane or threading.current_thread().name, began_s, lasted_s))


def drain() -> tuple[Span, ...]:
    """Return the spans kept since the last call, and forget them."""
    if not _kept:
        return ()
    return tuple(_kept.popleft() for _ in range(len(_kept)))


def receive(process: str, spans: Sequence[Span]) -> None:
    """Keep another process's spans, which came in a reply, under that process's name."""
    if _kept is not None:
        _kept.extend(replace(span, process=process) for span in spans)


class _Recording:
    """Context that keeps itself as a span."""

    __slots__ = ("_began", "_began_s", "_lane", "_name")

    def __init__(self, name: str, lane: str) -> None:
        self._name, self._lane = name, lane

    def __enter__(self) -> None:
        self._began_s, self._began = time.time(), time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        add(self._name, self._began_s, time.perf_counter() - self._began, self._lane)
