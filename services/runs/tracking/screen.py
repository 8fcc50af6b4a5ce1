"""The console's screen: a run's state and its drawing, without terminal, threads or clock."""

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from services.runs.changes import in_words
from services.runs.standard_errors import Change
from services.terminal.braille import draw_curve
from services.terminal.readable import duration, number, with_error

ETA_WINDOW = 10  # iterations from which the remaining time is estimated
BETWEEN_WINDOW = 20  # pauses before iterations
FEWEST = 3  # iterations after the first one, before the remaining time is estimated
NUM_NOTES = 4
COLOURS = {1: "green", 0: "default", -1: "red"}  # colours by a change's direction
REWARD, LOSS = "reward/mean", "loss/policy"
ITERATION_S = "time/iteration_s"
SHOWN = (
    ("reward", REWARD),
    ("KL", "kl/mean"),
    ("KL coef", "kl/coefficient"),
    ("entropy", "entropy"),
    ("length", "response_length/mean"),
    ("clipped", "clip_fraction"),
    ("tokens/s", "throughput/generated_tokens_per_s"),
)
SHOWN_OF_DATA = (  # without texts of the policy and rewards
    ("loss", LOSS),
    ("gradient norm", "gradient_norm/policy"),
    ("tokens/s", "throughput/trained_tokens_per_s"),
)

SHOWN_OF_PREFERENCES = (("margin", "rewards/margin"), ("accuracy", "rewards/accuracy"))

Level = Literal["info", "warning"]


@dataclass
class Phase:
    """Progress of one part of an iteration."""

    total: int | None
    began: float
    done: int = 0
    ended: float | None = None
    is_old: bool = False  # shown from the previous iteration

    def advance(self, n: int, now: float) -> None:
        self.done += n
        if self.total is not None and self.done >= self.total:
            self.ended = now

    def rate(self, now: float) -> float:
        """Return units per second."""
        return self.done / max((self.ended or now) - self.began, 1e-3)


@dataclass
class RunView:
    """The state of a run that the screen shows."""

    title: str = ""
    iterations: int = 0
    first_iteration: int = 1
    iteration: int = 0  # last iteration that ended
    curve: list[float] = field(default_factory=list)  # mean reward, or loss without rewards
    curve_of: str = "mean reward"
    metrics: dict[str, Any] = field(default_factory=dict)
    evaluations: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    changes: dict[str, Change] = field(default_factory=dict)  # changes by split, since its first evaluation
    errors: dict[str, float | None] = field(default_factory=dict)  # by split, of its last evaluation
    falls: set[str] = field(default_factory=set)  # splits for whose metric less is better
    phases: dict[str, Phase] = field(default_factory=dict)
    notes: deque[tuple[str, Level, str]] = field(default_factory=lambda: deque(maxlen=NUM_NOTES))
    took_s: float | None = None  # seconds of the last iteration alone
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=ETA_WINDOW))  # without the first
    between_s: deque[float] = field(
        default_factory=lambda: deque(maxlen=BETWEEN_WINDOW)
    )  # evaluations, saving
    iteration_began: float = 0.0  # start of the iteration, or of the step before it
    is_over: bool = False

    def iteration_ended(self, now: float, own_s: float | None) -> None:
        """Record an iteration's own duration `own_s` (None: the whole time) and the time before it."""
        whole_s = now - self.iteration_began
        own_s = whole_s if own_s is None else min(own_s, whole_s)
        # The first iteration warms up, after the start and the first evaluation.
        if self.took_s is not None:
            self.between_s.append(whole_s - own_s)
            self.durations_s.append(own_s)
        self.took_s, self.iteration_began = own_s, now

    def remaining_s(self, now: float) -> float | None:
        """Estimate the remaining time by the last iterations' median and the mean time between them.

        Return None if no iteration is left, or fewer than FEWEST after the first one are known.
        """
        left = self.iterations - self.iteration
        if left <= 0 or len(self.durations_s) < FEWEST:
            return None
        each_s = median(self.durations_s)
        if self.between_s:
            each_s += fmean(self.between_s)
        return left * each_s - min(now - self.iteration_began, each_s)


def draw_frame(view: RunView, width: int, height: int, now: float) -> RenderableType:
    """Draw the whole screen: heading, curve, phases, numbers, evaluations, notes."""
    rows = len(view.phases) + len(view.evaluations) + len(view.notes) + 12  # lines beside the curve
    return Padding(
        Group(
            _heading(view, now),
            ProgressBar(total=max(view.iterations, 1), completed=view.iteration, complete_style="cyan"),
            Text(),  # a bar doesn't end its line
            _curve(view, width - 2, min(10, max(3, height - rows))),
            Text(),
            _phases(view, now),
            Text(),
            _numbers(view),
            *_evaluations(view),
            *_notes(view),
        ),
        (0, 1),
    )


def _heading(view: RunView, now: float) -> RenderableType:
    remaining_s = view.remaining_s(now)
    # Whole seconds, because tenths would flicker.
    ends = "" if remaining_s is None else f" · about {duration(max(1, round(remaining_s)))} left"
    if view.iteration >= view.iterations:
        ends = " · done" if view.is_over else " · evaluating and saving"
    heading = Table.grid(expand=True)
    heading.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    heading.add_column(justify="right", no_wrap=True)
    heading.add_row(
        Text(view.title, style="bold"), Text(f"iteration {view.iteration}/{view.iterations}{ends}")
    )
    return heading


def _curve(view: RunView, width: int, height: int) -> RenderableType:
    """Draw reward or loss by iteration, with its lowest and highest value and the range of iterations."""
    finite = [value for value in view.curve if math.isfinite(value)]
    if not finite:
        return Text("The curve begins with the first iteration." + "\n" * (height + 1), style="dim")
    low, high = number(min(finite)), number(max(finite))
    margin = max(len(low), len(high))
    text = Text(f"{view.curve_of}\n", style="dim")
    for row, line in enumerate(draw_curve(view.curve, width - margin - 2, height)):
        label = high if row == 0 else low if row == height - 1 else ""
        text.append(f"{label:>{margin}} {'┤' if label else '│'}", style="dim not bold")
        text.append(line + "\n", style="not dim cyan")
    first, last = str(view.first_iteration), str(view.iteration)
    space = width - margin - 2 - len(first) - len(last)
    text.append(" " * (margin + 2) + first + " " * space + (last if last != first else ""), style="dim")
    return text


def _phases(view: RunView, now: float) -> RenderableType:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True, min_width=9)
    table.add_column(justify="right", no_wrap=True, min_width=8)
    for name, phase in view.phases.items():
        count = f"{phase.done}" if phase.total is None else f"{phase.done}/{phase.total}"
        colour = "bright_black" if phase.is_old else "green" if phase.ended else "cyan"
        bar = ProgressBar(
            total=phase.total, completed=phase.done, complete_style=colour, finished_style=colour
        )
        style = "dim" if phase.is_old else ""
        rate = f"{number(phase.rate(now))}/s" if phase.done else ""
        table.add_row(Text(name, style), bar, Text(count, style), Text(rate, style))
    return table


def _numbers(view: RunView) -> RenderableType:
    table, shown = Table.grid(expand=True, padding=(0, 1)), _shown(view)
    for _ in shown:
        table.add_column(no_wrap=True, ratio=1)
    table.add_row(*(Text(label, style="dim") for label, _ in shown))
    table.add_row(*(Text(number(view.metrics.get(key)), style="bold") for _, key in shown))
    return table


def _shown(view: RunView) -> tuple[tuple[str, str], ...]:
    """Return labels and keys of the numbers that this run has."""
    if not view.metrics or REWARD in view.metrics:
        return SHOWN
    preferred = [(label, key) for label, key in SHOWN_OF_PREFERENCES if key in view.metrics]
    return (*SHOWN_OF_DATA[:1], *preferred, *SHOWN_OF_DATA[1:])


def _evaluations(view: RunView) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for split, points in view.evaluations.items():
        (_, first), (iteration, last) = points[0], points[-1]
        change = view.changes.get(split)
        line = Text(f"{split} ", style="dim", no_wrap=True, overflow="ellipsis")
        line.append(number(first), style="not dim")
        if len(points) > 1:
            direction = change.direction if change else 0
            colour = COLOURS[-direction if split in view.falls else direction]
            line.append(" → ").append(
                with_error(last, view.errors.get(split)), style=f"not dim bold {colour}"
            )
        line.append(f"  at iteration {iteration}")
        lines.append(line.append(f"  {in_words(change)}" if change else ""))
    return [Text(), *lines] if lines else []


def _notes(view: RunView) -> list[RenderableType]:
    if not view.notes:
        return []
    colours = {"info": "not dim", "warning": "not dim yellow"}
    lines = [
        Text(f"{clock} ", style="dim", no_wrap=True, overflow="ellipsis").append(
            " ".join(text.split()), style=colours[level]
        )
        for clock, level, text in view.notes
    ]
    return [Text(), *lines]


def iteration_line(view: RunView, now: float) -> str:
    known = [f"{label} {number(view.metrics[key])}" for label, key in _shown(view) if key in view.metrics]
    remaining_s = view.remaining_s(now)
    took = duration(view.took_s or 0.0)
    if remaining_s is not None:
        took += f", about {duration(max(1, round(remaining_s)))} left"
    return f"iteration {view.iteration}/{view.iterations}  {'  '.join(known)}  ({took})"
