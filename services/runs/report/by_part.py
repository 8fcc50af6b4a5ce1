"""Curves of the parts of a mixture: one chart for each metric, with a curve for each part."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.runs.part_names import split_name
from services.runs.report.curves import BANDS, REWARD, Curve, Panel, curve_of

PASS_RATE = "curriculum/pass_rate"
# Metrics of an iteration that are drawn by part
IN_TRAINING = {REWARD: "Reward by part", PASS_RATE: "Pass rate of the prompts by part"}


def names_in_training(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the parts' metrics in the iterations' rows that are drawn."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if (part_and_name := split_name(name)) and part_and_name[1] in IN_TRAINING]


def part_panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return the panels of an iteration's metrics by part; [] without a mixture."""
    curves = _curves(rows, names_in_training(rows))
    return [
        Panel(title, "", tuple(curves[number])) for number, title in IN_TRAINING.items() if number in curves
    ]


def evaluated_panels(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Panel]:
    """Return the panels of evaluations by part.

    Args:
        names: names of the parts' metrics to draw.
    """
    panels = []
    for number, curves in _curves(rows, names).items():
        note = BANDS if any(curve.band for curve in curves) else ""
        sparse = tuple(replace(curve, is_sparse=True) for curve in curves)
        panels.append(Panel(f"{'Reward' if number == REWARD else number} by part", note, sparse))
    return panels


def _curves(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[Curve]]:
    """Return the parts' curves by the metric's name within the part."""
    by_number: dict[str, list[Curve]] = {}
    for name in names:
        part, number = split_name(name) or ("", name)
        by_number.setdefault(number, []).append(curve_of(part, name, rows))
    return by_number
