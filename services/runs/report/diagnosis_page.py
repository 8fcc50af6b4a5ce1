"""`diagnosis.html` of a run: each finding with its numbers, what to set, and its curves.

Diagnosis, History ──▶ DiagnosisPage ──▶ diagnosis.html.j2 ──▶ diagnosis.html
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.runs.diagnosis.diagnosis import Diagnosis, Finding
from services.runs.diagnosis.history import History, Row
from services.runs.diagnosis.rule import Rule
from services.runs.folder import RunFolder
from services.runs.json_lines import write_atomically
from services.runs.report.curves import Chart, Curve, Panel, curve_of, draw_svg
from services.runs.report.marked import with_code
from services.terminal.readable import duration, number
from services.terminal.templates import templates_in

BOX = (340, 180)  # width and height of a chart, in pixels


@dataclass(frozen=True, slots=True)
class ShownFinding:
    """A finding with its charts."""

    finding: Finding
    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True)
class DiagnosisPage:
    """Content for the template."""

    title: str
    diagnosis: Diagnosis
    shown: tuple[ShownFinding, ...]
    report: str  # name of the report's file in the same folder; "" without a report


def write_diagnosis(folder: RunFolder, history: History, diagnosis: Diagnosis) -> Path:
    """Write diagnosis.html into the run's folder."""
    shown = tuple(_shown(finding, history) for finding in diagnosis.findings)
    environment = templates_in(
        Path(__file__).parent, filters={"number": number, "duration": duration, "with_code": with_code}
    )
    report = folder.report.name if folder.report.is_file() else ""
    page = DiagnosisPage(folder.path.absolute().name, diagnosis, shown, report)
    html = environment.get_template("diagnosis.html.j2").render(page=page)
    return write_atomically(folder.diagnosis, html)


def _shown(finding: Finding, history: History) -> ShownFinding:
    panels = [*_panels(finding.rule, history.rows), *_held_out(finding, history)]
    return ShownFinding(finding, tuple(draw_svg(panel, *BOX) for panel in panels))


def _panels(rule: Rule, rows: Sequence[Row]) -> list[Panel]:
    """Return a panel for each column that the rule shows, with its threshold as a line."""
    panels = []
    for key in rule.shows:
        curve = curve_of(key, key, rows)
        if not curve.points:
            continue
        curves = [curve]
        if key == rule.shows[0] and rule.threshold is not None:
            ends = curve.points[0][0], curve.points[-1][0]
            curves.append(Curve("threshold", tuple((x, rule.threshold) for x in ends)))
        panels.append(Panel(key, "", tuple(curves)))
    return panels


def _held_out(finding: Finding, history: History) -> list[Panel]:
    """Return a panel for each validation metric in the evidence."""
    keys = [key for key in finding.evidence.numbers if key.startswith("val/") and not key.endswith("/best")]
    panels = []
    for key in keys:
        rows = [{"iteration": row["epoch"], **row["metrics"]} for row in history.evaluations]
        points = curve_of(key, key.removeprefix("val/"), rows).points
        panels.append(Panel(key, "validation", (Curve(key, points, is_sparse=True),)))
    return panels
