"""JSON and JSON Lines as a run writes them: valid without NaN, and whole or absent after a crash."""

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

from contracts.disk import room_for
from contracts.errors import InputError
from contracts.secret_values import hide

log = logging.getLogger(__name__)
_told: set[tuple[Path, "BadLine"]] = set()  # a run reads its files again and again
SHOWN = 3  # lines in a message


Needs = Mapping[str, type]  # keys that each row has, and the types of their values


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no row. Example: `BadLine(7, "it is not JSON: …")`"""

    number: int
    why: str


def told(bad: Sequence[BadLine]) -> str:
    """
    >>> told([BadLine(7, "it is not JSON"), *[BadLine(number, "…") for number in (8, 9, 10, 11)]])
    'line 7: it is not JSON; line 8: …; line 9: …; and 2 more lines'
    """
    lines = [f"line {line.number}: {line.why}" for line in bad[:SHOWN]]
    return "; ".join([*lines, *[f"and {len(bad) - SHOWN} more lines"] * (len(bad) > SHOWN)])


def read_rows(file: Path, needs: Needs | None = None) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file, or none. Lines that are no rows are left out, with one warning."""
    rows, bad = sift(file, needs)
    new = [line for line in bad if (file, line) not in _told]
    if new:
        _told.update((file, line) for line in new)
        log.warning("%s is damaged and read without these lines: %s", file, told(new))
    return rows


def sift(file: Path, needs: Needs | None = None) -> tuple[list[dict[str, Any]], list[BadLine]]:
    """The rows of a JSON Lines file, and the lines that are none.

    A last line without its end is neither: it is being written, or a crash cut it short.
    """
    rows, bad = [], []
    # splitlines() would also split at a U+2028 inside a text
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
        found = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected an object {{…}}, got {type(found).__name__}")
    for key, kind in needs.items():
        if not isinstance(found.get(key), kind):
            raise ValueError(
                f"expected {key!r} with a value of type {kind.__name__}, got {found.get(key)!r:.80}"
            )
    return found


def read_object(file: Path) -> dict[str, Any]:
    """The one object of a JSON file.

    Raises:
        InputError: the file can't be read, is not JSON, or holds something else.
    """
    found = read_json(file)
    if not isinstance(found, dict):
        raise InputError(f"{file} is damaged: expected an object {{…}}, got {type(found).__name__}")
    return found


def read_json(file: Path) -> Any:
    """What a JSON file holds.

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
    """A free name beside it, for what was damaged. Example: `rollout_info.jsonl.damaged-20261122-153217`"""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (path.with_name(f"{path.name}.damaged-{stamp}{more}") for more in ("", *range(-2, -100, -1)))
    return next(name for name in names if not name.exists())


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
    with room_for(path), _removed_at_last(neighbour):
        # Half a surrogate pair, which a model can write, becomes the escape that JSON has for it.
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
    """Add a line. Where there is no room for all of it, nothing of it stays.

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
