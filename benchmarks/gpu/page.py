"""Write docs/results/gpu.md from what the parts have measured. Pure functions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "results" / "gpu.md"
HEAD = """# On a GPU

`make gpu` runs the tests that need a GPU, then these benchmarks, and writes this page: in at most half an
hour on one GPU of 80 GB. The model has Qwen2.5's shape of 0.5B and random weights. [What reading the code
found](gpu_defects.md) before any GPU ran it is a page of its own.
"""
NOT_RUN = """
**These tests and benchmarks have not run yet.** No machine with a GPU was at hand. What other
pages say of GPUs was calculated, or tried on CPUs.
"""
ABOUT = {
    "tests": "Tests that need a GPU",
    "generation": "A worker beside bare vLLM",
    "training": "Updates: operations and memory",
    "pushes": "Weights on their way to a worker",
    "sleeping": "A worker that leaves its memory",
    "runs": "Two whole runs",
}


def page(machine: str | None, found: Mapping[str, Mapping[str, Any] | str]) -> str:
    """Return the page's text.

    Args:
        machine: its name; None: nothing has run.
        found: by part its rows, or why there are none.
    """
    if machine is None:
        return HEAD + NOT_RUN
    parts = [f"{HEAD}\nMeasured on {machine}.\n"]
    for name, rows in found.items():
        shown = f"**Failed:** {rows}\n" if isinstance(rows, str) else _table(rows)
        parts.append(f"## {ABOUT[name]}\n\n{shown}")
    return "\n".join(parts)


def _table(rows: Mapping[str, Any]) -> str:
    told = (f"| {name} | {_said(value)} |\n" for name, value in rows.items())
    return f"|  |  |\n|---|---|\n{''.join(told)}"


def _said(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.3f}" if value < 100 else f"{value:,.0f}"
