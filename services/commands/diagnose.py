"""`whetstone diagnose RUN`: name a run's problems, their evidence and a remedy."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from services.runs.diagnosis.diagnosis import Diagnosis, Finding, diagnose
from services.runs.diagnosis.history import FEWEST
from services.runs.diagnosis.reading import history_of
from services.runs.nearby import run_at
from services.runs.report.diagnosis_page import write_diagnosis
from services.runs.report.report import write_report
from services.terminal.doing import doing
from services.terminal.visible import visible_json


def run(argv: Sequence[str]) -> int:
    """Print the findings, and write diagnosis.html into the run's folder.

    Raises:
        InputError: RUN is not a run's folder, or has too few iterations.
    """
    parser = argparse.ArgumentParser(prog="whetstone diagnose", description=__doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="the run's folder, such as runs/NAME")
    parser.add_argument("--json", action="store_true", help="print an object with findings and rules")
    arguments = parser.parse_args(argv)
    folder = run_at(arguments.run)
    with doing("reading the run's numbers"):
        history = history_of(folder)
        if len(history.rows) < FEWEST:
            raise InputError(
                f"{arguments.run}: got {len(history.rows)} iterations; expected at least {FEWEST}. Let the "
                "run go on, and ask again"
            )
        diagnosis = diagnose(history)
        page = write_diagnosis(folder, history, diagnosis)
        if folder.report.is_file():
            write_report(folder)  # with a link to the diagnosis
    if arguments.json:
        print(visible_json(json.dumps(as_data(diagnosis), indent=1, ensure_ascii=False)))
    else:
        _print(diagnosis, page)
    return 0


def as_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis for programs.

    Example: `{"iterations": 80, "findings": [{"rule": "entropy_collapses", "since": 31, "until": 80,
    "numbers": {"entropy": 0.01, …}, "set": ["algorithm.entropy_coef=0.01", …], …}], "silent": […],
    "blind": […]}`
    """
    return {
        "iterations": diagnosis.iterations,
        "findings": [_finding(finding) for finding in diagnosis.findings],
        "silent": [rule.name for rule in diagnosis.silent],
        "blind": [rule.name for rule in diagnosis.blind],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    rule = finding.rule
    return {
        "rule": rule.name,
        "title": rule.title,
        "since": finding.since,
        "until": finding.until,
        **asdict(finding.evidence),
        "threshold": rule.threshold,
        "reason": rule.reason,
        "set": list(finding.remedy),
        "curves": list(rule.shows),
    }


def _print(diagnosis: Diagnosis, page: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    from services.terminal.screens import Screen

    table = Table.grid(padding=(0, 2))
    for finding in diagnosis.findings:
        lasts = finding.until == diagnosis.iterations
        evidence = Text(f"{finding.evidence.said}\n{finding.when(diagnosis.iterations)}", style="not bold")
        for remedy in finding.remedy:
            evidence.append(f"\n→ {remedy}", style="bold")
        sign = Text("✗", style="red") if lasts else Text("!", style="yellow")
        table.add_row(sign, Text(finding.rule.title, style="bold"), evidence)
    console = Screen(highlight=False)
    if diagnosis.findings:
        console.print(table)
    console.print(_verdict(diagnosis), style="bold", soft_wrap=True)
    if diagnosis.blind:
        names = ", ".join(f"{rule.title} ({', '.join(rule.reads)})" for rule in diagnosis.blind)
        console.print(f"Not measured in this run: {names}", style="dim", soft_wrap=True)
    console.print(f"curves    {page}", soft_wrap=True)


def _verdict(diagnosis: Diagnosis) -> str:
    """Sum up the diagnosis in one line.

    >>> _verdict(Diagnosis(80, (), (), ()))
    'Nothing found in 80 iterations by 0 rules.'
    """
    able = len(diagnosis.findings) + len(diagnosis.silent)
    count = len(diagnosis.findings)
    what = f"{count} finding{'s' * (count > 1)}" if count else "Nothing found"
    return f"{what} in {diagnosis.iterations} iterations by {able} rules."
