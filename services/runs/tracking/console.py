"""Console of a run: a live screen on a terminal, otherwise lines of some iterations.

    Console       keeps the run's state and prints plain lines; the run's folder has every iteration
    LiveConsole   draws the same state as a screen, a few times a second, in its own thread;
                  in a notebook, as its one output

Calls only store numbers under a lock, so they cost microseconds and may come from any thread.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console as Terminal
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from contracts.processes import timeline
from contracts.secrets.redaction import redact
from services.runs.changes import Observed, change, error_of, in_words, observed
from services.runs.standard_errors import is_error, less_is_better
from services.runs.tracking.notebook import HEIGHT, WIDTH, NotebookScreen, is_notebook
from services.runs.tracking.screen import (
    ITERATION_S,
    LOSS,
    REWARD,
    Level,
    Phase,
    RunView,
    draw_frame,
    iteration_line,
)
from services.terminal.doing import doing
from services.terminal.readable import with_error
from services.terminal.screens import Screen

FRAMES_PER_S, PAGES_PER_S = 8, 2  # frames on a terminal, and pages in a notebook
NUM_SHOWN = 6  # numbers of an evaluation in a line
FEW, EVERY = 20, 10  # up to 20 iterations, print a line for each; in longer runs, for every tenth
QUIET_S = 30.0  # time without a line, after which the next iteration gets one
IDLE_FRAME_S = 1.0  # time between frames without news, so that clocks advance


class Console:
    """Console of plain lines, for files, pipes and terminals that can't draw."""

    def __init__(self, terminal: Terminal):
        self.terminal = terminal
        self.view = RunView()
        self.on_progress: Callable[[], None] = lambda: None  # called at each progress
        self._noted: list[tuple[str, Level]] = []  # notes before `listen` is called
        self._on_note: Callable[[str, Level], None] = lambda text, level: self._noted.append((text, level))
        self._lock = threading.Lock()
        # The first evaluation of each split and metric, with its iteration.
        self._first: dict[tuple[str, str], tuple[int, Observed]] = {}
        self._told_at = -math.inf  # when the last line of an iteration was printed

    def start(self, title: str, iterations: int, first_iteration: int = 1) -> None:
        """Show that the run begins, or resumes, with `first_iteration` of `iterations`."""
        title = redact(title)
        with self._lock:
            self.view.title, self.view.iterations = title, iterations
            self.view.first_iteration, self.view.iteration = first_iteration, first_iteration - 1
            self.view.iteration_began = time.monotonic()
        if first_iteration > iterations:
            self._say(f"{title}: all {iterations} iterations are done; only final steps are left")
        else:
            self._say(f"{title}: iterations {first_iteration} to {iterations}")

    def phase(self, name: str, total: int | None = None) -> None:
        """Restart phase `name`, with `total` units of work if known."""
        with self._lock:
            self.view.phases[name] = Phase(total, time.monotonic())

    def advance(self, name: str, n: int = 1) -> None:
        """Count `n` more units of the phase as done."""
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
            if REWARD not in metrics and LOSS in metrics:
                view.curve_of = "loss"
            shown = metrics.get(REWARD, metrics.get(LOSS))
            view.curve.append(math.nan if shown is None else float(shown))
            for phase in view.phases.values():
                phase.is_old = True
            line = iteration_line(view, now)
            is_due = self.shows_progress or self._is_due(now)
            self._told_at = now if is_due else self._told_at
        if is_due:
            self._say(line)

    def evaluation_done(
        self,
        split: str,
        iteration: int,
        metrics: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Show an evaluation after `iteration` iterations by its mean reward, or by its first number.

        Args:
            rows: its predictions, for the standard error of the change since the first evaluation.
        """
        numbers = {
            key: value
            for key, value in metrics.items()
            if isinstance(value, int | float) and not is_error(key)
        }
        if not numbers:
            return
        metric = REWARD if REWARD in numbers else next(iter(numbers))
        observation = observed(metric, metrics, rows)
        since, first = self._first.setdefault((split, metric), (iteration, observation))
        moved = change(first, observation) if iteration > since else None
        with self._lock:
            self.view.evaluations.setdefault(split, []).append((iteration, numbers[metric]))
            self.view.changes |= {split: moved} if moved else {}
            self.view.errors[split] = error_of(metric, metrics, rows)
            self.view.falls |= {split} if less_is_better(metric) else set()
        num_at_k = sum("@" in key for key in numbers)  # they come first
        shown = "  ".join(
            f"{key} {with_error(value, error_of(key, metrics, rows))}"
            for key, value in list(numbers.items())[: max(NUM_SHOWN, num_at_k + 1)]
        )
        change_in_words = f" ({metric} since iteration {since}: {in_words(moved)})" if moved else ""
        self._say(f"{split} after iteration {iteration}: {shown}{change_in_words}")

    def note(self, text: str, level: Level = "info") -> None:
        """Show a line, and pass it to the run's log."""
        self._on_note(text, level)
        self.show(text, level)

    def warn(self, text: str) -> None:
        """Show a line as a warning, and pass it to the run's log."""
        self.note(text, "warning")

    def listen(self, on_note: Callable[[str, Level], None]) -> None:
        """Call `on_note` for every note from now on, and at once for earlier ones."""
        self._on_note = on_note
        while self._noted:
            on_note(*self._noted.pop(0))

    def show(self, text: str, level: Level = "info") -> None:
        """Show a line without passing it to the run's log."""
        text = redact(text)
        with self._lock:
            self.view.notes.append((time.strftime("%H:%M:%S"), level, text))
        self._say(text if level == "info" else f"warning: {text}")

    def doing(self, what: str) -> AbstractContextManager[None]:
        """Report a slow step while it runs, unless a screen or a bar shows it."""
        return timeline.span(what) if self.shows_progress else doing(what, self.note)

    @property
    def shows_progress(self) -> bool:
        return False

    def _is_due(self, now: float) -> bool:
        """Return whether the finished iteration gets a line. Hundreds of lines would hide all others."""
        view = self.view
        at_an_end = view.iteration in (view.first_iteration, view.iterations)
        every = EVERY if view.iterations > FEW else 1
        return at_an_end or not view.iteration % every or now - self._told_at >= QUIET_S

    def stop(self) -> None:
        """End the display and leave its last frame. May be called twice."""

    def _say(self, line: str) -> None:
        self.terminal.print(redact(line), soft_wrap=True, markup=False, highlight=False, emoji=False)


class LiveConsole(Console):
    """Console whose screen is redrawn in place, and stays when the run ends."""

    def __init__(self, terminal: Terminal, *, in_notebook: bool = False):
        super().__init__(terminal)
        self._in_notebook = in_notebook
        self._live: Live | NotebookScreen
        if in_notebook:
            self._live = NotebookScreen(self._frame)
        else:
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
        self._draw()

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

    def _draw(self) -> None:
        if not self._live.is_started:
            self._live.start(refresh=True)
            self._thread.start()

    def _say(self, line: str) -> None:
        if self._in_notebook:
            self._draw()  # also what comes before the first iteration
        if self._live.is_started:
            self._has_news.set()  # the next frame shows it
        else:
            super()._say(line)

    def _redraw(self) -> None:
        while not self._is_over.is_set():
            self._has_news.wait(IDLE_FRAME_S)
            self._has_news.clear()
            self._live.refresh()
            self._is_over.wait(1 / (PAGES_PER_S if self._in_notebook else FRAMES_PER_S))

    def _frame(self) -> RenderableType:
        size = (WIDTH, HEIGHT) if self._in_notebook else (self.terminal.width, self.terminal.height)
        with self._lock:
            if not self.view.iterations:  # the run has not begun
                return Group(*(Text(text) for _, _, text in self.view.notes))
            return draw_frame(self.view, *size, time.monotonic())


class LastingTerminal(Screen):
    """Terminal that ignores lost output, so that a run continues after its window or `tee` is closed."""

    def on_broken_pipe(self) -> None:
        with contextlib.suppress(SystemExit):  # rich would end the run
            super().on_broken_pipe()

    def print(self, *objects: Any, **options: Any) -> None:
        with contextlib.suppress(OSError):
            super().print(*objects, **options)


def open_console() -> Console:
    """Return a live screen if standard output or a notebook can show it, otherwise plain lines."""
    if is_notebook():
        return LiveConsole(LastingTerminal(force_jupyter=False), in_notebook=True)
    terminal = LastingTerminal()
    can_draw = terminal.is_terminal and not terminal.is_dumb_terminal
    if can_draw and terminal.encoding.startswith("utf"):
        return LiveConsole(terminal)
    return Console(terminal)
