"""JSON and JSON Lines files: valid JSON without NaN, complete or absent after a crash."""

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from contracts.processes.disk import room_for
from contracts.secrets.secret_values import hide

log = logging.getLogger(__name__)
_told: set[tuple[Path, "BadLine"]] = set()  # to warn only once
SHOWN = 3  # lines in a message


Needs = Mapping[str, type]  # required keys of each row, and the types of their values


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a valid row. Example: `BadLine(7, "it is not JSON: …")`"""

    number: int
    why: str


def told(bad: Sequence[BadLine]) -> str:
    """List bad lines for a message.

    >>> told([BadLine(7, "it is not JSON"), *[BadLine(number, "…") for number in (8, 9, 10, 11)]])
    'line 7: it is not JSON; line 8: …; line 9: …; and 2 more lines'
    """
    lines = [f"line {line.number}: {line.why}" for line in bad[:SHOWN]]
    return "; ".join([*lines, *[f"and {len(bad) - SHOWN} more lines"] * (len(bad) > SHOWN)])


def read_rows(file: Path, needs: Needs | None = None) -> list[dict[str, Any]]:
    """Return a JSON Lines file's rows, without bad lines and with one warning; [] if the file is missing."""
    rows, bad = sift(file, needs)
    new = [line for line in bad if (file, line) not in _told]
    if new:
        _told.update((file, line) for line in new)
        log.warning("%s is damaged and read without these lines: %s", file, told(new))
    return rows


def sift(file: Path, needs: Needs | None = None) -> tuple[list[dict[str, Any]], list[BadLine]]:
    """Return the rows of a JSON Lines file, and its bad lines.

    A broken last line without a newline is neither, because it is being written or a crash cut it short.
    """
    rows, bad = [], []
    # splitlines() would also split at U+2028 inside a text.
    lines = file.read_bytes().split(b"\n") if file.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            if line:
                rows.append(_row(line, needs or {}))
        except ValueError as error:
            if number < len(lines):
                bad.append(BadLine(number, str(error)))
    return rows, bad


def _row(line: bytes, needs: Needs) -> dict[str, Any]:
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"expected an object {{…}}, got {type(row).__name__}")
    for key, kind in needs.items():
        if not isinstance(row.get(key), kind):
            raise ValueError(
                f"expected {key!r} with a value of type {kind.__name__}, got {row.get(key)!r:.80}"
            )
    return row


def merged(*files: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge the rows of several info files into one row per iteration, in order.

    >>> merged([{"iteration": 1, "a": 2}], [{"iteration": 1, "b": 3}])
    [{'iteration': 1, 'a': 2, 'b': 3}]
    """
    by_iteration: dict[int, dict[str, Any]] = {}
    for rows in files:
        for row in rows:
            by_iteration.setdefault(row["iteration"], {}).update(row)
    return [by_iteration[iteration] for iteration in sorted(by_iteration)]


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object.

    Raises:
        InputError: the file can't be read, is not JSON, or does not hold an object.
    """
    content = read_json(file)
    if not isinstance(content, dict):
        raise InputError(f"{file} is damaged: expected an object {{…}}, got {type(content).__name__}")
    return content


def read_json(file: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: the file can't be read, or is not JSON.
    """
    try:
        return json.loads(file.read_bytes().decode())
    except OSError as error:
        raise InputError(f"{file} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is damaged: it is not JSON: {error}") from None


def damaged_name(path: Path) -> Path:
    """Return a free name for a damaged file or folder: `rollout_info.jsonl.damaged-20261122-153217`."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (path.with_name(f"{path.name}.damaged-{stamp}{more}") for more in ("", *range(-2, -100, -1)))
    return next(name for name in names if not name.exists())


def to_line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of JSON, with this process's known secrets hidden."""
    return hide(json.dumps(without_nan(row), ensure_ascii=False, allow_nan=False)) + "\n"


def without_nan(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by None, and NumPy's numbers by Python's."""
    if isinstance(value, Mapping):
        return {str(key): without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_atomically(path: Path, text: str) -> Path:
    """Write a temporary file and rename it to `path`, so that a reader finds the old file or the new one.

    Hide this process's known secrets.
    """
    neighbour = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with room_for(path), _removed_at_last(neighbour):
        # A model can write half a surrogate pair, which becomes its JSON escape.
        with neighbour.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(hide(text))
            file.flush()
            os.fsync(file.fileno())
        os.replace(neighbour, path)
    return path


@contextlib.contextmanager
def _removed_at_last(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def append_row(file: Path, row: Mapping[str, Any]) -> None:
    """Append a line. If the disk has no room for all of it, remove the written part.

    Raises:
        DiskFull: there was no room.
    """
    line = to_line(row).encode("utf-8", "backslashreplace")
    with room_for(file), file.open("ab", buffering=0) as opened:
        end = opened.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[opened.write(line) :]
        except OSError:
            with contextlib.suppress(OSError):
                opened.truncate(end)
            raise
