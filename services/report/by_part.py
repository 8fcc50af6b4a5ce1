"""Curves of the parts of a mixture: one chart for each number, with a curve for each part."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.report.curves import BANDS, REWARD, Curve, Panel, curve_of
from services.runs.part_names import split_name

PASS_RATE = "curriculum/pass_rate"
# Numbers of an iteration that are drawn by part
IN_TRAINING = {REWARD: "Reward by part", PASS_RATE: "Pass rate of the prompts by part"}


def names_in_training(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the parts' numbers in the rows of iterations that are drawn."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if (found := split_name(name)) and found[1] in IN_TRAINING]


def part_panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return the panels of an iteration's numbers by part; none without a mixture."""
    curves = _curves(rows, names_in_training(rows))
    return [Panel(title, "", tuple(curves[own])) for own, title in IN_TRAINING.items() if own in curves]


def evaluated_panels(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Panel]:
    """Return the panels of evaluations by part.

    Args:
        names: of the parts' numbers to draw.
    """
    panels = []
    for own, curves in _curves(rows, names).items():
        note = BANDS if any(curve.band for curve in curves) else ""
        sparse = tuple(replace(curve, is_sparse=True) for curve in curves)
        panels.append(Panel(f"{'Reward' if own == REWARD else own} by part", note, sparse))
    return panels


def _curves(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[Curve]]:
    """Return the parts' curves by the number's own name."""
    found: dict[str, list[Curve]] = {}
    for name in names:
        part, own = split_name(name) or ("", name)
        found.setdefault(own, []).append(curve_of(part, name, rows))
    return found
