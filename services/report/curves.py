"""Learning curves of a run: their selection and their drawing, for the report's page and for a PNG."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_POINTS = 240  # in a chart; neighbouring points are averaged beyond that
# The page's CSS variables and their light colours: curves, then ticks, then the grid.
COLOURS = {
    **{"c0": "#2463a8", "c1": "#c8641b", "c2": "#2f8559", "c3": "#7d4fb0", "c4": "#b03a67", "c5": "#6f6a1d"},
    **{"soft": "#6d6d68", "line": "#e4e3de"},
}

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
    """A panel with its drawing for the page: an <svg> element."""

    panel: Panel
    svg: str


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
    curves = [curve("mean", "reward/mean", rows)]
    parts = sorted({key for row in rows for key in row if key.startswith("reward/") and key.count("/") > 1})
    part_keys = [key for key in parts if key.endswith("/mean")]
    if len(part_keys) > 1:
        curves += [curve(key.split("/", 1)[1].removesuffix("/mean"), key, rows) for key in part_keys]
    points = [(float(row["epoch"]), row["metrics"].get("reward/mean")) for row in evaluations]
    validation = tuple((epoch, value) for epoch, value in points if _is_number(value))
    curves.append(Curve("validation", validation, is_sparse=True))
    note = "mean of each iteration's rollouts"
    return Panel("Reward", note, tuple(curve for curve in curves if curve.points))


def panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return a panel for each of PANELS for which the rows have numbers."""
    made = [
        Panel(title, note, tuple(curve(label, key, rows) for key, label in keys))
        for title, note, keys in PANELS
    ]
    filled = [
        Panel(panel.title, panel.note, tuple(curve for curve in panel.curves if curve.points))
        for panel in made
    ]
    return [panel for panel in filled if panel.curves]


def draw_svg(panel: Panel, width: int, height: int) -> Chart:
    """Draw a panel in a box of `width` × `height` pixels, in the colours of the page's CSS."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure, file = Figure(figsize=(width / 72, height / 72), layout="constrained"), io.StringIO()
    _plot(figure.add_subplot(), panel, font_size=11)
    figure.get_layout_engine().set(w_pad=0, h_pad=0)  # type: ignore[union-attr,call-arg]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": panel.title}):  # texts stay texts; stable ids
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()[file.getvalue().index("<svg") :]
    for variable, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return Chart(panel, svg.replace("<svg", f'<svg role="img" aria-label="{panel.title} by iteration"', 1))


def draw_png(panels_: Sequence[Panel], path: Path, title: str) -> Path:
    """Draw all panels into one PNG, for a talk or a message; return its path."""
    from matplotlib.figure import Figure

    num_columns = min((3, 4, 5), key=lambda columns: -len(panels_) % columns)  # fewest empty places
    num_rows = math.ceil(len(panels_) / num_columns)
    figure = Figure(figsize=(4 * num_columns, 2.7 * num_rows + 0.4), layout="constrained", dpi=130)
    figure.suptitle(title, fontsize=11)
    for index, panel in enumerate(panels_):
        axes = figure.add_subplot(num_rows, num_columns, index + 1)
        _plot(axes, panel, font_size=7)
        axes.set_title(panel.title, fontsize=9, loc="left")
        if len(panel.curves) > 1:
            axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, format="png")
    return path


def _plot(axes: Any, panel: Panel, font_size: int) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    *colours, soft, line = COLOURS.values()
    for number, curve in enumerate(panel.curves):
        xs, ys = zip(*curve.points, strict=True)
        marker = "o" if curve.is_sparse or len(xs) == 1 else None
        look = {"linestyle": ":" if curve.is_sparse else "-", "color": colours[number % len(colours)]}
        axes.plot(
            xs, ys, label=curve.label, linewidth=1.7, marker=marker, markersize=4, clip_on=False, **look
        )
    axes.tick_params(labelsize=font_size, labelcolor=soft, length=0, pad=7)
    axes.spines[:].set_visible(False)
    axes.grid(axis="y", linewidth=1, color=line)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=(1, 2, 5, 10)))
    axes.yaxis.set_major_locator(rows := MaxNLocator(nbins=4, steps=(1, 2, 2.5, 5, 10)))
    first, *_, last = rows.tick_values(*axes.dataLim.intervaly)  # around the values
    axes.set(xmargin=0, ylim=(first, last))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value)))


def tick_label(value: float) -> str:
    """Format a tick's value in few letters.

    >>> [tick_label(value) for value in (0.25, 5000.0, 2500000.0, 0.00002, 0.0, 40)]
    ['0.25', '5k', '2.5M', '2e-05', '0', '40']
    """
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.4g}{letter}"
    return f"{value:.4g}"


def curve(label: str, key: str, rows: Sequence[Mapping[str, Any]]) -> Curve:
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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
