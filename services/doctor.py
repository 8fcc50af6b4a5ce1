"""`whetstone doctor`: what this machine has, what a run will use, what is missing and how to mend it.

`whetstone doctor RUN` looks at a run's files instead.

Nothing heavy is imported, unless there is a GPU: then torch is asked whether it can use it.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from contracts.components import find
from contracts.errors import InputError
from reward_servers.metrics import METRICS
from reward_servers.requirements import REQUIREMENTS, requires
from reward_servers.rewards import REWARDS
from services.doing import doing
from services.installation import (
    IMAGE_AND_SOUND,
    VLLM_PACKAGES,
    image_and_sound,
    installed_versions,
    packages,
    python,
    vllm_package,
)
from services.machine import Finding, Gpus, Status, cores, disk, find_gpus, gpu, memory, port, shared_memory

EXIT_DAMAGED = 2
PORTS = {8000: "whetstone serve", 8265: "Ray's dashboard"}

SIGNS: dict[Status, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "warning": ("!", "yellow"),
    "missing": ("✗", "red"),
    "damaged": ("✗", "red"),
}


def run(argv: Sequence[str]) -> int:
    """The command: 0 if a run is possible here, else 1. Of a run: 0 if its files are whole, else 2.

    Raises:
        InputError: RUN is no run's folder.
    """
    parser = argparse.ArgumentParser(
        prog="whetstone doctor",
        description="Say what this machine has and what is missing; or which files of a run are damaged.",
    )
    parser.add_argument("run", metavar="RUN", nargs="?", type=Path, help="look at this run's files instead")
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
    from services.report import no_run
    from services.run_check import examine_run, verdict
    from services.run_folder import RunFolder, is_run

    if not is_run(path):
        raise InputError(no_run(path))
    folder = RunFolder(path)
    with doing("reading the run's files"):
        findings = examine_run(folder)
    _print(findings, verdict(folder, findings), as_json=as_json)
    return EXIT_DAMAGED if any(finding.status == "damaged" for finding in findings) else 0


def examine(folder: Path | None = None) -> list[Finding]:
    """Everything, in the order in which a person reads it."""
    gpus = find_gpus()
    installed = installed_versions((*VLLM_PACKAGES, *IMAGE_AND_SOUND, "torch"))
    return [
        cores(),
        memory(),
        disk(folder or Path.cwd()),
        shared_memory(),
        gpu(gpus),
        python(),
        *packages(),
        vllm_package(installed, has_gpu=gpus.usable),
        *image_and_sound(installed),
        *graders(),
        *(port(number, user) for number, user in PORTS.items()),
        plan(installed, gpus),
    ]


def graders() -> list[Finding]:
    """What some rewards and metrics need on top; a run that names none of those goes without."""
    users: dict[str, set[str]] = {}
    for kind, table in (("reward", REWARDS), ("metric", METRICS)):
        for name in table:
            for each in requires(find(kind, name, table)):
                users.setdefault(each, set()).add(name)
    return [_for_graders(name, sorted(names)) for name, names in sorted(users.items())]


def _for_graders(name: str, users: Sequence[str]) -> Finding:
    needed, wanted_by = REQUIREMENTS[name], f"for {', '.join(users)}"
    if needed.is_there():
        return Finding(name, "ok", wanted_by)
    return Finding(name, "warning", f"not there: {needed.what}, {wanted_by}", needed.remedy)


def plan(installed: Mapping[str, str | None], gpus: Gpus) -> Finding:
    """What a run takes when nothing else is asked for."""
    engine = "vLLM" if any(installed.get(name) for name in VLLM_PACKAGES) else "transformers"
    device, dtype = ("GPU", "bfloat16") if gpus.usable else ("CPU", "float32")
    threads = os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))
    address = os.environ.get("RAY_ADDRESS")
    where = f", in the Ray cluster at {address}" if address else ""
    return Finding("a run uses", "ok", f"{engine} on the {device}, {dtype}, {threads} threads{where}")


def _print(findings: Sequence[Finding], verdict: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for finding in findings:
        sign, colour = SIGNS[finding.status]
        found = Text(finding.found)
        if finding.remedy and finding.status != "ok":
            found.append(f"\n→ {finding.remedy}", style="bold")
        table.add_row(Text(sign, style=colour), Text(finding.topic, style="dim"), found)
    console = Console(highlight=False)
    console.print(table)
    console.print(f"\n{verdict}", style="bold", soft_wrap=True)
