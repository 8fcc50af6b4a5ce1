"""Draw several groups of runs in one chart, each with its mean and a band of its seeds' range."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from services.runs.report.by_part import names_in_training
from services.runs.report.curves import PANELS, REWARD, Curve, Panel, curve_of, is_number, thinned
from services.runs.report.evaluated import Evaluated, is_asked_for, is_of_part
from services.studies.comparison.groups import Group, Run

Row = Mapping[str, Any]
RowsOf = Callable[[Run], Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Compared:
    """A group with all evaluations of each of its runs on the validation split."""

    group: Group
    evaluations: tuple[tuple[Evaluated, ...], ...]


def training_panels(groups: Sequence[Compared]) -> list[Panel]:
    """Return a panel for the reward, each of the report's numbers, and each measure."""
    keys = [("Reward", "mean of each iteration's rollouts", REWARD)]
    for title, note, curves in PANELS:
        several = len(curves) > 1
        keys += [(f"{title}: {label}" if several else title, note, key) for key, label in curves]
    for compared in groups:
        for run in compared.group.runs:
            keys += [(name, "a part of the mixture", name) for name in names_in_training(run.rows)]
            keys += [(name, "your own measure", name) for name in run.measures]
    rows = [[run.rows for run in compared.group.runs] for compared in groups]
    names = [compared.group.name for compared in groups]
    return _filled([_panel(title, note, key, names, rows) for title, note, key in dict.fromkeys(keys)])


def validation_panels(groups: Sequence[Compared]) -> list[Panel]:
    """Return a panel for the reward and one for each other metric of the evaluations."""
    rows = [
        [[evaluation.row for evaluation in evaluations] for evaluations in compared.evaluations]
        for compared in groups
    ]
    named = [
        name
        for compared in groups
        for evaluations in compared.evaluations
        for evaluation in evaluations
        for name in evaluation.metrics
        if "@" in name or is_asked_for(name) or is_of_part(name)
    ]
    names = [compared.group.name for compared in groups]
    panels = [
        _panel("Reward" if key == REWARD else key, "", key, names, rows)
        for key in dict.fromkeys((REWARD, *named))
    ]
    sparse = [
        replace(panel, curves=tuple(replace(curve, is_sparse=True) for curve in panel.curves))
        for panel in panels
    ]
    return _filled(sparse)


def over_seeds(label: str, key: str, runs: Sequence[Sequence[Row]]) -> Curve:
    """Return the mean over runs at each common iteration, with the range as a band.

    A single run's band shows its standard errors, if known.
    """
    if len(runs) == 1:
        return curve_of(label, key, runs[0])
    values = [{row["iteration"]: float(row[key]) for row in rows if is_number(row.get(key))} for rows in runs]
    shared = sorted(set.intersection(*map(set, values)))
    at = [[by_iteration[iteration] for by_iteration in values] for iteration in shared]
    points = thinned(
        [(float(iteration), fmean(numbers)) for iteration, numbers in zip(shared, at, strict=True)]
    )
    return Curve(label, tuple(points), band=tuple(thinned([(min(numbers), max(numbers)) for numbers in at])))


def _panel(
    title: str, note: str, key: str, names: Sequence[str], rows: Sequence[Sequence[Sequence[Row]]]
) -> Panel:
    """Return a panel with a curve for each group; groups without the number have an empty curve."""
    curves = tuple(over_seeds(name, key, runs) for name, runs in zip(names, rows, strict=True))
    return Panel(title, note, curves)


def _filled(panels: Sequence[Panel]) -> list[Panel]:
    return [panel for panel in panels if any(curve.points for curve in panel.curves)]
