"""JSON and JSON Lines as a run writes them: valid without NaN, and whole or absent after a crash."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.secret_values import hide


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The lines of a JSON Lines file, or none; a line cut short by a crash is left out."""
    rows = []
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    for line in filter(None, text.split("\n")):  # splitlines() would also split at a U+2028 inside a text
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def to_line(row: Mapping[str, Any]) -> str:
    """A line of a file; secrets that this process knows are hidden."""
    return hide(json.dumps(without_nan(row), ensure_ascii=False, allow_nan=False)) + "\n"


def without_nan(value: Any) -> Any:
    """JSON knows no NaN and no infinity: both become null. Numbers of NumPy become Python's."""
    if isinstance(value, Mapping):
        return {str(key): without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_atomically(path: Path, text: str) -> Path:
    """Write a neighbour and put it in `path`'s place: a reader finds the old file or the new one.

    Secrets that this process knows are hidden.
    """
    neighbour = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # Half a surrogate pair, which a model can write, becomes the escape that JSON has for it.
        with neighbour.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(hide(text))
            file.flush()
            os.fsync(file.fileno())
        os.replace(neighbour, path)
    finally:
        neighbour.unlink(missing_ok=True)
    return path
