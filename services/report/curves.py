"""Learning curves of a run: their selection, their geometry for the report's page, and a PNG."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_POINTS = 240  # in a chart; neighbouring points are averaged beyond that
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 46, 8, 8, 22

Point = tuple[float, float]  # iteration, value


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart; `is_sparse` marks each point, for evaluations."""

    label: str
    points: tuple[Point, ...]
    is_sparse: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves that share one chart; `note` explains them in a few words."""

    title: str
    note: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A panel laid out in a box of `width` × `height` pixels, y downwards as in SVG."""

    panel: Panel
    width: int
    height: int
    paths: tuple[str, ...]  # the attribute `d` of each curve's <path>
    marks: tuple[tuple[Point, ...], ...]  # dots of each curve
    x_ticks: tuple[tuple[float, str], ...]  # position, label
    y_ticks: tuple[tuple[float, str], ...]


# Title, note, and keys with their labels. `reward_panel` makes the reward's panel, whose curves vary.
PANELS = (
    (
        "Episodes",
        "share of an iteration's episodes",
        (("environment/won/mean", "won"), ("environment/lost/mean", "lost"), ("finish/cut", "cut")),
    ),
    ("Score", "share of the highest possible score", (("environment/score/mean", "score"),)),
    ("Turns", "per episode", (("turns/mean", "turns"),)),
    ("Invalid answers", "share of the turns", (("environment/invalid/mean", "invalid"),)),
    ("KL to the reference", "nats per token", (("kl/mean", "KL"),)),
    ("KL coefficient", "weight of the KL penalty", (("kl/coefficient", "coefficient"),)),
    ("Entropy", "nats per token; near 0: always the same text", (("entropy", "entropy"),)),
    ("Response length", "tokens", (("response_length/mean", "length"),)),
    ("Policy loss", "what the update minimises", (("loss/policy", "policy"),)),
    ("Value loss", "squared error of the critic", (("loss/value", "value"),)),
    ("Clip fraction", "tokens whose ratio left the clip range", (("clip_fraction", "clipped"),)),
    ("Explained variance", "of returns, by the critic; at most 1", (("explained_variance", "explained"),)),
    (
        "Throughput",
        "tokens per second",
        (
            ("throughput/generated_tokens_per_s", "generated"),
            ("throughput/trained_tokens_per_s", "trained"),
        ),
    ),
)


def reward_panel(rows: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> Panel:
    """Return the panel of the mean reward, its parts if there are several, and the validation reward."""
    curves = [_curve("mean", "reward/mean", rows)]
    parts = sorted({key for row in rows for key in row if key.startswith("reward/") and key.count("/") > 1})
    part_keys = [key for key in parts if key.endswith("/mean")]
    if len(part_keys) > 1:
        curves += [_curve(key.split("/", 1)[1].removesuffix("/mean"), key, rows) for key in part_keys]
    points = [(float(row["epoch"]), row["metrics"].get("reward/mean")) for row in evaluations]
    validation = tuple((epoch, value) for epoch, value in points if _is_number(value))
    curves.append(Curve("validation", validation, is_sparse=True))
    note = "mean of each iteration's rollouts"
    return Panel("Reward", note, tuple(curve for curve in curves if curve.points))


def panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return a panel for each of PANELS for which the rows have numbers."""
    made = [
        Panel(title, note, tuple(_curve(label, key, rows) for key, label in keys))
        for title, note, keys in PANELS
    ]
    filled = [
        Panel(panel.title, panel.note, tuple(curve for curve in panel.curves if curve.points))
        for panel in made
    ]
    return [panel for panel in filled if panel.curves]


def lay_out(panel: Panel, width: int, height: int) -> Chart:
    """Lay out a panel in a box of `width` × `height` pixels."""
    points = [point for curve in panel.curves for point in curve.points]
    x_low, x_high = _span(x for x, _ in points)
    y_low, y_high = _span(y for _, y in points)
    y_ticks = ticks(y_low, y_high, most=4)
    y_low, y_high = min(y_low, y_ticks[0]), max(y_high, y_ticks[-1])
    inner_width = width - MARGIN_LEFT - MARGIN_RIGHT
    inner_height = height - MARGIN_TOP - MARGIN_BOTTOM

    def place(point: Point) -> Point:
        right = MARGIN_LEFT + (point[0] - x_low) / (x_high - x_low) * inner_width
        down = MARGIN_TOP + (y_high - point[1]) / (y_high - y_low) * inner_height
        return round(right, 1), round(down, 1)

    placed = [[place(point) for point in curve.points] for curve in panel.curves]
    has_dots = [curve.is_sparse or len(curve.points) == 1 for curve in panel.curves]
    return Chart(
        panel=panel,
        width=width,
        height=height,
        paths=tuple("M" + " L".join(f"{x:g},{y:g}" for x, y in line) for line in placed),
        marks=tuple(tuple(line) if dots else () for line, dots in zip(placed, has_dots, strict=True)),
        x_ticks=tuple(
            (place((tick, y_low))[0], tick_label(tick)) for tick in ticks(x_low, x_high, most=6, whole=True)
        ),
        y_ticks=tuple((place((x_low, tick))[1], tick_label(tick)) for tick in y_ticks),
    )


def draw_png(panels_: Sequence[Panel], path: Path, title: str) -> Path:
    """Draw all panels into one PNG, for a talk or a message; return its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    num_columns = min((3, 4, 5), key=lambda columns: -len(panels_) % columns)  # fewest empty places
    num_rows = math.ceil(len(panels_) / num_columns)
    figure = Figure(figsize=(4 * num_columns, 2.7 * num_rows + 0.4), layout="constrained", dpi=130)
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11)
    for index, panel in enumerate(panels_):
        axes = figure.add_subplot(num_rows, num_columns, index + 1)
        for curve in panel.curves:
            xs, ys = zip(*curve.points, strict=True)
            marker = "o" if curve.is_sparse or len(xs) == 1 else None
            axes.plot(xs, ys, label=curve.label, linewidth=1.4, marker=marker, markersize=3.5)
        axes.set_title(panel.title, fontsize=9, loc="left")
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", linewidth=0.4, alpha=0.5)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        if len(panel.curves) > 1:
            axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, format="png")
    return path


def ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Return at most `most` + 1 round numbers that span `low` to `high`.

    >>> ticks(0.31, 0.86, most=4)
    [0.2, 0.4, 0.6, 0.8, 1.0]
    >>> ticks(1, 40, most=6, whole=True)
    [10.0, 20.0, 30.0, 40.0]

    With `whole`, for iterations, they are whole numbers inside the span.
    """
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    sizes = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(size * power for size in sizes if size * power >= rough * (1 - 1e-9))
    if whole:
        whole_step = max(1, round(step))
        first = math.ceil(low / whole_step) * whole_step
        return [float(tick) for tick in range(first, math.floor(high) + 1, whole_step)]
    first_index, last_index = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first_index, last_index + 1)]


def tick_label(value: float) -> str:
    """Format a tick's value in few letters.

    >>> [tick_label(value) for value in (0.25, 5000.0, 2500000.0, 0.00002, 0.0, 40)]
    ['0.25', '5k', '2.5M', '2e-05', '0', '40']
    """
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.4g}{letter}"
    return f"{value:.4g}"


def _curve(label: str, key: str, rows: Sequence[Mapping[str, Any]]) -> Curve:
    points = [(float(row["iteration"]), float(row[key])) for row in rows if _is_number(row.get(key))]
    return Curve(label, tuple(_thinned(points)))


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most MAX_POINTS means of neighbouring points; the last point stays as it is."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = math.ceil(len(points) / MAX_POINTS)
    bins = [points[start : start + size] for start in range(0, len(points), size)]
    means = [(sum(x for x, _ in b) / len(b), sum(y for _, y in b) / len(b)) for b in bins]
    return [*means[:-1], points[-1]]


def _span(values: Iterable[float]) -> Point:
    """Return the lowest and the highest value, with some room between them where they are equal."""
    known = list(values)
    low, high = min(known), max(known)
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    room = abs(low) * 0.1 or 1.0
    return low - room, high + room


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
