"""Write docs/results/gpu.md from the stored lines. All functions except `main` are pure."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.gpu.lines import Line, failures, newest, older, read, shown

PAGE = Path(__file__).parents[2] / "docs" / "results" / "gpu.md"
HEAD = """# On a GPU

`make gpu MINUTES=12` measures the parts below in this order until the time is over. A value stays until the
same card gives a newer one. The model has Qwen2.5's 0.5B shape and random weights.
"""
NOT_RUN = """
**These tests and benchmarks have not run yet.** No machine with a GPU was available. Other pages' statements
about GPUs were calculated, or tried on CPUs.
"""
ABOUT = {  # in the order of measurement, the least known first
    "iteration": "Whole iterations of GRPO",
    "training": "Updates: operations and memory",
    "pushes": "Weight pushes to a worker",
    "generation": "A worker beside bare vLLM",
    "runs": "Two whole runs",
    "sleeping": "Sleep and wake of a worker",
    "tests": "Tests that need a GPU",
}


def page(lines: Sequence[Line]) -> str:
    """Return the page's text."""
    if not lines:
        return HEAD + NOT_RUN
    parts = [HEAD, *(_part(name, lines) for name in ABOUT), _versions(lines)]
    return "\n".join(part for part in parts if part)


def _part(name: str, lines: Sequence[Line]) -> str:
    """Return a part's failures and table, or "Not measured yet."."""
    values = [line for line in newest(lines).values() if line.part == name]
    broken = [line for line in failures(lines) if line.part == name]
    parts = [f"**Failed** ({_measured(line)}): {line.value}\n" for line in broken]
    if values:
        rows = "".join(_row(lines, line) for line in values)
        parts.append(f"| what | value | before | measured |\n|---|---|---|---|\n{rows}")
    return f"## {ABOUT[name]}\n\n" + ("\n".join(parts) or "Not measured yet.\n")


def _row(lines: Sequence[Line], line: Line) -> str:
    before = older(lines, line)
    earlier = "" if before is None else f"{shown(before.value)} ({before.commit})"
    return f"| {line.what} | {shown(line.value)} | {earlier} | {_measured(line)} |\n"


def _measured(line: Line) -> str:
    card = line.card.removeprefix("NVIDIA ").split(" ")[0]
    return f"{card}, {line.day}, {line.commit}"


def _versions(lines: Iterable[Line]) -> str:
    """List each card's software."""
    rows = {f"- {line.card}, {line.day}, {line.commit}: {line.versions}\n": None for line in lines}
    return f"## Software\n\n{''.join(rows)}"


def main() -> None:
    """Write the page anew from the stored lines."""
    PAGE.write_text(page(read()))


if __name__ == "__main__":
    sys.exit(main())
