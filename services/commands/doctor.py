"""`whetstone doctor`: check this machine; `whetstone doctor RUN`: check a run's files."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from services.terminal.doing import doing
from services.terminal.visible import visible_json
from services.training.preflight.examination import examine
from services.training.preflight.machine import Finding, Status

EXIT_DAMAGED = 2

SIGNS: dict[Status, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "warning": ("!", "yellow"),
    "missing": ("✗", "red"),
    "damaged": ("✗", "red"),
}


def run(argv: Sequence[str]) -> int:
    """Print findings. Return 0 if a run is possible here, else 1; for RUN 0 if its files are whole, else 2.

    Raises:
        InputError: RUN is not a run's folder.
    """
    parser = argparse.ArgumentParser(
        prog="whetstone doctor",
        description="Say what this machine has and what is missing; or which files of a run are damaged.",
    )
    parser.add_argument("run", metavar="RUN", nargs="?", type=Path, help="check this run's files instead")
    parser.add_argument("--json", action="store_true", help="print an array of findings")
    arguments = parser.parse_args(argv)
    if arguments.run is not None:
        return _examine_run(arguments.run, as_json=arguments.json)
    with doing("looking at this machine"):
        findings = examine()
    count = sum(finding.status == "missing" for finding in findings)
    verdict = "A run is possible here." if not count else "A run is not possible yet: mend what has a ✗."
    _print(findings, verdict, as_json=arguments.json)
    return int(count > 0)


def _examine_run(path: Path, *, as_json: bool) -> int:
    from services.runs.nearby import run_at
    from services.training.preflight.checks.run_check import examine_run, verdict

    folder = run_at(path)
    with doing("reading the run's files"):
        findings = examine_run(folder)
    _print(findings, verdict(folder, findings), as_json=as_json)
    return EXIT_DAMAGED if any(finding.status == "damaged" for finding in findings) else 0


def _print(findings: Sequence[Finding], verdict: str, *, as_json: bool) -> None:
    if as_json:
        listed = [asdict(finding) for finding in findings]
        print(visible_json(json.dumps(listed, indent=1, ensure_ascii=False)))
        return
    from rich.table import Table
    from rich.text import Text

    from services.terminal.screens import Screen

    table = Table.grid(padding=(0, 2))
    for finding in findings:
        sign, colour = SIGNS[finding.status]
        text = Text(finding.found)
        if finding.remedy and finding.status != "ok":
            text.append(f"\n→ {finding.remedy}", style="bold")
        table.add_row(Text(sign, style=colour), Text(finding.topic, style="dim"), text)
    console = Screen(highlight=False)
    console.print(table)
    console.print(f"\n{verdict}", style="bold", soft_wrap=True)
