"""The output of a benchmark: a table for people, and a JSON file for programs."""

import io
import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from services.runs.tracking.console import Console as RunConsole

OUT = Path(__file__).parent / "out"


def in_turns(
    sides: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Measure every side once a round, so that all see the same load; return each side's values."""
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(warm_up + rounds):
        for name, side in sides.items():
            value = side()
            if turn >= warm_up:
                measured[name].append(value)
    return measured


def seconds(act: Callable[[], Any]) -> float:
    started = perf_counter()
    act()
    return perf_counter() - started


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Return the median of the rounds' ratios, in which a round's common noise cancels."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def with_error(values: Sequence[float]) -> str:
    """Return the mean and its standard error; 0 for fewer than two values.

    >>> with_error([0.5, 0.7])
    '0.600 ± 0.100'
    """
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ± {error:.3f}"


def silent_console() -> RunConsole:
    return RunConsole(Console(file=io.StringIO()))


def publish(name: str, title: str, rows: Mapping[str, Any], details: Mapping[str, Any]) -> None:
    """Print the rows; write them, the details, the machine and its Python to out/<name>.json."""
    table = Table(title=title, title_justify="left", show_header=False)
    for key, value in rows.items():
        table.add_row(key, f"{value:,.3f}" if isinstance(value, float) else str(value))
    Console().print(table)
    OUT.mkdir(exist_ok=True)
    record = {"name": name, "rows": dict(rows), "details": dict(details), "machine": _machine()}
    (OUT / f"{name}.json").write_text(json.dumps(record, indent=1))


def _machine() -> dict[str, Any]:
    processor = platform.processor() or platform.machine()
    return {"cores": os.cpu_count(), "processor": processor, "python": platform.python_version()}
