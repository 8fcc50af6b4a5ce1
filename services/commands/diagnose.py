"""`whetstone diagnose RUN`: say what goes wrong in a run, by which numbers, and what to set."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from services.diagnosis.diagnosis import Diagnosis, Finding, diagnose
from services.diagnosis.history import FEWEST
from services.diagnosis.reading import history_of
from services.report.diagnosis_page import write_diagnosis
from services.report.report import write_report
from services.runs.nearby import run_at
from services.terminal.doing import doing
from services.terminal.visible import visible_json


def run(argv: Sequence[str]) -> int:
    """Print the findings, and write diagnosis.html into the run's folder.

    Raises:
        InputError: RUN is no run's folder, or has too few iterations.
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
        found = diagnose(history)
        page = write_diagnosis(folder, history, found)
        if folder.report.is_file():
            write_report(folder)  # with a link to the diagnosis
    if arguments.json:
        print(visible_json(json.dumps(as_data(found), indent=1, ensure_ascii=False)))
    else:
        _print(found, page)
    return 0


def as_data(found: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis for programs.

    Example: `{"iterations": 80, "findings": [{"rule": "entropy_collapses", "since": 31, "until": 80,
    "numbers": {"entropy": 0.01, …}, "set": ["algorithm.entropy_coef=0.01", …], …}], "silent": […],
    "blind": […]}`
    """
    return {
        "iterations": found.iterations,
        "findings": [_finding(each) for each in found.findings],
        "silent": [rule.name for rule in found.silent],
        "blind": [rule.name for rule in found.blind],
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


def _print(found: Diagnosis, page: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    from services.terminal.screens import Screen

    table = Table.grid(padding=(0, 2))
    for finding in found.findings:
        lasts = finding.until == found.iterations
        said = Text(f"{finding.evidence.said}\n{finding.when(found.iterations)}", style="not bold")
        for each in finding.remedy:
            said.append(f"\n→ {each}", style="bold")
        sign = Text("✗", style="red") if lasts else Text("!", style="yellow")
        table.add_row(sign, Text(finding.rule.title, style="bold"), said)
    console = Screen(highlight=False)
    if found.findings:
        console.print(table)
    console.print(_verdict(found), style="bold", soft_wrap=True)
    if found.blind:
        names = ", ".join(f"{rule.title} ({', '.join(rule.reads)})" for rule in found.blind)
        console.print(f"Not measured in this run: {names}", style="dim", soft_wrap=True)
    console.print(f"curves    {page}", soft_wrap=True)


def _verdict(found: Diagnosis) -> str:
    """Sum up in a line.

    >>> _verdict(Diagnosis(80, (), (), ()))
    'Nothing found in 80 iterations by 0 rules.'
    """
    able = len(found.findings) + len(found.silent)
    count = len(found.findings)
    what = f"{count} finding{'s' * (count > 1)}" if count else "Nothing found"
    return f"{what} in {found.iterations} iterations by {able} rules."
