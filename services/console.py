"""What a person sees while a run goes on: a live screen on a terminal, one line an iteration elsewhere.

    Console       keeps what is known of the run and prints plain lines
    LiveConsole   the same, drawn as a screen a few times a second by a thread of its own

Calls only write down numbers under a lock, so they cost microseconds and may come from any thread.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console as Terminal
from rich.console import RenderableType
from rich.live import Live

from contracts.redaction import redact
from services.changes import Observed, change, in_words, observed
from services.doing import doing
from services.readable import number
from services.screen import ITERATION_S, REWARD, Level, Phase, RunView, draw_frame, iteration_line

FRAMES_PER_S = 8
IDLE_FRAME_S = 1.0  # the clocks move on even when nothing happens


class Console:
    """Plain lines: for files, pipes and terminals that can't draw."""

    def __init__(self, terminal: Terminal):
        self.terminal = terminal
        self.view = RunView()
        self.on_progress: Callable[[], None] = lambda: None  # whoever else wants to know that work gets done
        self._noted: list[tuple[str, Level]] = []  # until somebody listens
        self._on_note: Callable[[str, Level], None] = lambda text, level: self._noted.append((text, level))
        self._lock = threading.Lock()
        # The first evaluation of each split and metric, and after how many iterations it was.
        self._first: dict[tuple[str, str], tuple[int, Observed]] = {}

    def start(self, title: str, iterations: int, first_iteration: int = 1) -> None:
        """The run begins, or goes on, with `first_iteration` of `iterations`."""
        title = redact(title)
        with self._lock:
            self.view.title, self.view.iterations = title, iterations
            self.view.first_iteration, self.view.iteration = first_iteration, first_iteration - 1
            self.view.iteration_began = time.monotonic()
        if first_iteration > iterations:
            self._say(f"{title}: all {iterations} iterations are done; what comes after them is left")
        else:
            self._say(f"{title}: iterations {first_iteration} to {iterations}")

    def phase(self, name: str, total: int | None = None) -> None:
        """`name` begins anew, with `total` units of work if that is known."""
        with self._lock:
            self.view.phases[name] = Phase(total, time.monotonic())

    def advance(self, name: str, n: int = 1) -> None:
        """`n` more units of the phase are done."""
        now = time.monotonic()
        with self._lock:
            self.view.phases.setdefault(name, Phase(None, now)).advance(n, now)
        if n:
            self.on_progress()

    def iteration_done(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        now = time.monotonic()
        with self._lock:
            view = self.view
            view.iteration_ended(now, metrics.get(ITERATION_S))
            view.iteration = iteration
            view.metrics = dict(metrics)
            reward = metrics.get(REWARD)
            view.rewards.append(math.nan if reward is None else float(reward))
            for phase in view.phases.values():
                phase.is_old = True
            line = iteration_line(view, now)
        self._say(line)

    def evaluation_done(
        self,
        split: str,
        iteration: int,
        metrics: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """An evaluation after `iteration` iterations; the mean reward, or else its first number, is shown.

        Args:
            rows: its predictions, which tell how certain the change since the first evaluation is.
        """
        numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
        if not numbers:
            return
        metric = REWARD if REWARD in numbers else next(iter(numbers))
        found = observed(metric, metrics, rows)
        since, first = self._first.setdefault((split, metric), (iteration, found))
        moved = change(first, found) if iteration > since else None
        with self._lock:
            self.view.evaluations.setdefault(split, []).append((iteration, numbers[metric]))
            self.view.changes |= {split: moved} if moved else {}
        shown = "  ".join(f"{key} {number(value)}" for key, value in list(numbers.items())[:6])
        told = f" ({metric} since iteration {since}: {in_words(moved)})" if moved else ""
        self._say(f"{split} after iteration {iteration}: {shown}{told}")

    def note(self, text: str, level: Level = "info") -> None:
        """Show a line, and tell it who listens: the run's log."""
        self._on_note(text, level)
        self.show(text, level)

    def warn(self, text: str) -> None:
        """`note`, as a warning."""
        self.note(text, "warning")

    def listen(self, on_note: Callable[[str, Level], None]) -> None:
        """From now on `on_note` is told of every note, and at once of those so far."""
        self._on_note = on_note
        while self._noted:
            on_note(*self._noted.pop(0))

    def show(self, text: str, level: Level = "info") -> None:
        """Show a line that is logged elsewhere."""
        text = redact(text)
        with self._lock:
            self.view.notes.append((time.strftime("%H:%M:%S"), level, text))
        self._say(text if level == "info" else f"warning: {text}")

    def doing(self, what: str) -> AbstractContextManager[None]:
        """Tell of what takes long while it goes on, unless a screen or a bar shows it."""
        return contextlib.nullcontext() if self.shows_progress else doing(what, self.note)

    @property
    def shows_progress(self) -> bool:
        return False

    def stop(self) -> None:
        """The last frame stays. May be called twice."""

    def _say(self, line: str) -> None:
        self.terminal.print(redact(line), soft_wrap=True, markup=False, highlight=False, emoji=False)


class LiveConsole(Console):
    """A screen that is redrawn in place, and stays when the run ends."""

    def __init__(self, terminal: Terminal):
        super().__init__(terminal)
        self._live = Live(
            console=terminal, get_renderable=self._frame, auto_refresh=False, vertical_overflow="crop"
        )
        self._has_news = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="console", daemon=True)

    @property
    def shows_progress(self) -> bool:
        return self._live.is_started

    def start(self, title: str, iterations: int, first_iteration: int = 1) -> None:
        super().start(title, iterations, first_iteration)
        self._live.start(refresh=True)
        self._thread.start()

    def phase(self, name: str, total: int | None = None) -> None:
        super().phase(name, total)
        self._has_news.set()

    def advance(self, name: str, n: int = 1) -> None:
        super().advance(name, n)
        self._has_news.set()

    def stop(self) -> None:
        with self._lock:
            self.view.is_over = True
        if self._thread.is_alive():
            self._is_over.set()
            self._has_news.set()
            self._thread.join()
            self._live.stop()

    def _say(self, line: str) -> None:
        if self._live.is_started:
            self._has_news.set()  # the frame says it
        else:
            super()._say(line)

    def _redraw(self) -> None:
        while not self._is_over.is_set():
            self._has_news.wait(IDLE_FRAME_S)
            self._has_news.clear()
            self._live.refresh()
            self._is_over.wait(1 / FRAMES_PER_S)

    def _frame(self) -> RenderableType:
        with self._lock:
            return draw_frame(self.view, self.terminal.width, self.terminal.height, time.monotonic())


class LastingTerminal(Terminal):
    """A run goes on, and saves, when nobody reads along any more: `tee` is gone, or the window is closed."""

    def on_broken_pipe(self) -> None:
        with contextlib.suppress(SystemExit):  # by which rich would end the run
            super().on_broken_pipe()

    def print(self, *objects: Any, **options: Any) -> None:
        with contextlib.suppress(OSError):
            super().print(*objects, **options)


def open_console() -> Console:
    """The live screen where standard output can show it, plain lines elsewhere."""
    terminal = LastingTerminal()
    can_draw = terminal.is_terminal and not terminal.is_dumb_terminal
    if can_draw and terminal.encoding.startswith("utf"):
        return LiveConsole(terminal)
    return Console(terminal)
