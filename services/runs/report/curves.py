"""Learning curves of a run: selection and drawing, for the report's page and for a PNG."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from services.runs.standard_errors import CLEAR, error_key
from services.terminal.visible import visible

REWARD = "reward/mean"
LOSS = "Loss"  # title of the panel of a run without rewards
POLICY_LOSS, HELD_OUT_LOSS = "loss/policy", "loss"  # losses in training and in evaluations
BANDS = f"bands: ± {CLEAR:g} standard errors over prompts"
MAX_POINTS = 240  # most points in a chart; above it, neighbouring points are averaged
# The page's CSS variables and their light colours: curves, then ticks, then the grid.
COLOURS = {
    **{"c0": "#2463a8", "c1": "#c8641b", "c2": "#2f8559", "c3": "#7d4fb0", "c4": "#b03a67", "c5": "#6f6a1d"},
    **{"soft": "#6d6d68", "line": "#e4e3de"},
}

Point = tuple[float, float]  # iteration, value


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart. `is_sparse` marks each point, for evaluations."""

    label: str
    points: tuple[Point, ...]
    is_sparse: bool = False
    band: tuple[Point, ...] = ()  # lowest and highest value at each point; empty: no band


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves that share one chart. `note` explains them in a few words."""

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
    ("Pass rate of the prompts", "running averages", (("curriculum/pass_rate", "pass rate"),)),
    ("KL to the reference", "nats per token", (("kl/mean", "KL"),)),
    ("KL coefficient", "weight of the KL penalty", (("kl/coefficient", "coefficient"),)),
    ("Entropy", "nats per token; near 0: always the same text", (("entropy", "entropy"),)),
    ("Response length", "tokens", (("response_length/mean", "length"),)),
    (
        "Length by the order of training",
        "tokens; groups that later ones overtook, and the others",
        (("order/overtaken_length", "overtaken"), ("order/other_length", "others")),
    ),
    (
        "Short texts first",
        "length of all trained texts ÷ of those leased first; 1: nothing is preferred",
        (("order/length_ratio", "ratio"),),
    ),
    ("Margin", "of what is preferred", (("rewards/margin", "margin"),)),
    ("Accuracy", "share of preferences that the model shares", (("rewards/accuracy", "accuracy"),)),
    ("Policy loss", "what the update minimises", (("loss/policy", "policy"),)),
    ("Value loss", "squared error of the critic", (("loss/value", "value"),)),
    ("Clip fraction", "tokens whose ratio left the clip range", (("clip_fraction", "clipped"),)),
    ("Mismatch", "engine and learner apart, nats per token; 0 in float32", (("mismatch/kl", "KL"),)),
    ("Worst mismatch", "factor between both probabilities of a token", (("mismatch/max_ratio", "worst"),)),
    ("Masked", "tokens left out for their mismatch", (("mismatch/masked", "masked"),)),
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
    curves = [curve_of("mean", REWARD, rows)]
    part_keys = [key for key in _mean_keys(rows) if key.count("/") == 2]
    if len(part_keys) > 1:
        curves += [curve_of(key.split("/", 1)[1].removesuffix("/mean"), key, rows) for key in part_keys]
    metrics = [{"iteration": row["epoch"], **row["metrics"]} for row in evaluations]
    curves.append(replace(curve_of("validation", REWARD, metrics), is_sparse=True))
    note = "mean of each iteration's rollouts"
    has_bands = any(curve.band for curve in curves)
    return Panel(
        "Reward", f"{note}; {BANDS}" if has_bands else note, tuple(curve for curve in curves if curve.points)
    )


def named_value_panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return a panel for each value that a reward names beside its score, because scales may differ."""
    keys = [key for key in _mean_keys(rows) if key.count("/") > 2]
    names = [key.removeprefix("reward/").removesuffix("/mean") for key in keys]
    return [
        Panel(name, "a value that the reward names", (curve_of(name, key, rows),))
        for name, key in zip(names, keys, strict=True)
    ]


def _mean_keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys of each reward's mean and of the means of its named values."""
    keys = {key for row in rows for key in row if key.startswith("reward/") and key.count("/") > 1}
    return sorted(key for key in keys if key.endswith("/mean"))


def loss_panel(rows: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> Panel:
    """Return the panel of the loss in training and on held-out responses."""
    metrics = [{"iteration": row["epoch"], **row["metrics"]} for row in evaluations]
    curves = (
        curve_of("training", POLICY_LOSS, rows),
        replace(curve_of("validation", HELD_OUT_LOSS, metrics), is_sparse=True),
    )
    note = "in training; dotted: of held-out responses"
    return Panel(LOSS, note, tuple(curve for curve in curves if curve.points))


def main_panel(
    rows: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]], *, sums: bool = False
) -> Panel:
    """Return the main panel of a run: its reward, or its loss if nothing earns a reward.

    Args:
        sums: whether the training loss is a sum over a response's tokens, which has another scale.
    """
    panel = reward_panel(rows, evaluations)
    return panel if panel.curves else loss_panel(() if sums else rows, evaluations)


def panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return the panels from PANELS for which the rows have numbers."""
    made = [
        Panel(title, note, tuple(curve_of(label, key, rows) for key, label in keys))
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
    # Texts stay texts, and ids are the same each time.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": visible(panel.title)}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()[file.getvalue().index("<svg") :]
    for variable, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{variable})")
    named = f'<svg role="img" aria-label="{escape(visible(panel.title))} by iteration"'
    return Chart(panel, svg.replace("<svg", named, 1))


def draw_png(panels_: Sequence[Panel], path: Path, title: str) -> Path:
    """Draw all panels into one PNG, for a talk or a message; return its path."""
    from matplotlib.figure import Figure

    num_columns = min((3, 4, 5), key=lambda columns: -len(panels_) % columns)  # fewest empty places
    num_rows = math.ceil(len(panels_) / num_columns)
    figure = Figure(figsize=(4 * num_columns, 2.7 * num_rows + 0.4), layout="constrained", dpi=130)
    figure.suptitle(visible(title), fontsize=11, parse_math=False)
    for index, panel in enumerate(panels_):
        axes = figure.add_subplot(num_rows, num_columns, index + 1)
        _plot(axes, panel, font_size=7)
        axes.set_title(visible(panel.title), fontsize=9, loc="left", parse_math=False)
        if len(panel.curves) > 1:
            for text in axes.legend(fontsize=7, frameon=False).get_texts():
                text.set_parse_math(False)
    figure.savefig(path, format="png")
    return path


def _plot(axes: Any, panel: Panel, font_size: int) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    *colours, soft, line = COLOURS.values()
    for number, curve in enumerate(panel.curves):
        if not curve.points:  # skip it, but keep the colours of the others
            continue
        xs, ys = zip(*curve.points, strict=True)
        marker = "o" if curve.is_sparse or len(xs) == 1 else None
        look: dict[str, Any] = {
            "linestyle": ":" if curve.is_sparse else "-",
            "color": colours[number % len(colours)],
        }
        if curve.band:
            lows, highs = zip(*curve.band, strict=True)
            axes.fill_between(xs, lows, highs, color=look["color"], alpha=0.16, linewidth=0)
        look |= {"marker": marker, "markersize": 4, "linewidth": 1.7, "clip_on": False}
        axes.plot(xs, ys, label=visible(curve.label), **look)
    axes.tick_params(labelsize=font_size, labelcolor=soft, length=0, pad=7)
    axes.spines[:].set_visible(False)
    axes.grid(axis="y", linewidth=1, color=line)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=(1, 2, 5, 10)))
    axes.yaxis.set_major_locator(rows := MaxNLocator(nbins=4, steps=(1, 2, 2.5, 5, 10)))
    first, *_, last = rows.tick_values(*_span(*axes.dataLim.intervaly))  # around the values
    axes.set(xmargin=0, ylim=(first, last))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(partial(_of_axis, axis)))


def _span(low: float, high: float) -> Point:
    """Return the two ends of an axis, with some room between them if they are equal.

    >>> _span(0.2, 0.9), _span(2.0, 2.0), _span(0.0, 0.0)
    ((0.2, 0.9), (1.8, 2.2), (-1.0, 1.0))
    """
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    room = abs(low) * 0.1 or 1.0
    return low - room, high + room


def _of_axis(axis: Any, value: float, _: int) -> str:
    """Return the label of one tick of an axis."""
    ticks = [float(place) for place in axis.get_majorticklocs()]
    return dict(zip(ticks, tick_labels(ticks), strict=True)).get(float(value), f"{value:g}")


def tick_labels(values: Sequence[float]) -> list[str]:
    """Format the values of an axis in few letters, with as many digits as tell all of them apart.

    >>> tick_labels((0.0, 0.25)), tick_labels((5000.0, 2500000.0)), tick_labels((0.00002,))
    (['0', '0.25'], ['5k', '2.5M'], ['2e-05'])
    >>> tick_labels((100000.0, 100010.0)), tick_labels((1.00001, 1.00002))
    (['100k', '100.01k'], ['1.00001', '1.00002'])
    """
    labels = [[_tick_label(value, digits) for value in values] for digits in range(4, 17)]
    return next((texts for texts in labels if len(set(texts)) == len(values)), labels[-1])


def _tick_label(value: float, digits: int) -> str:
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.{digits}g}{letter}"
    return f"{value:.{digits}g}"


def curve_of(label: str, key: str, rows: Sequence[Mapping[str, Any]]) -> Curve:
    """Return the curve of a key, with a band where each row has the key's standard error."""
    known = [row for row in rows if is_number(row.get(key))]
    points = thinned([(float(row["iteration"]), float(row[key])) for row in known])
    errors = [row.get(error_key(key)) for row in known]
    if not all(map(is_number, errors)):
        return Curve(label, tuple(points))
    ends = [
        (float(row[key]) - CLEAR * error, float(row[key]) + CLEAR * error)
        for row, error in zip(known, errors, strict=True)
        if error is not None
    ]
    return Curve(label, tuple(points), band=tuple(thinned(ends)))


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most MAX_POINTS means of neighbouring points; the last point stays as it is."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = math.ceil(len(points) / MAX_POINTS)
    bins = [points[start : start + size] for start in range(0, len(points), size)]
    means = [(sum(x for x, _ in b) / len(b), sum(y for _, y in b) / len(b)) for b in bins]
    return [*means[:-1], points[-1]]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
