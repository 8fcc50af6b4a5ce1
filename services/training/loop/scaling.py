"""Change the number of a running run's workers, by a request file and an answer file in its folder.

whetstone scale RUN workers=3 ──▶ .workers_asked.json ──▶ the loop reads it once a second
                  ▲                                               │
                  └──────── .workers.json ◀── how many are up ◀───┘
"""

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contracts.clients import FleetClient
from contracts.errors import DeadlineExceeded, InputError, RunError
from services.runs import claim as run_claim
from services.runs.json_lines import write_atomically

ASKED, TAKEN, FOUND = ".workers_asked.json", ".workers_taken.json", ".workers.json"
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Workers:
    """A run's answer about its workers.

    Example: `Workers(asked=3, to_be=3, up=2)`
    """

    asked: int | None  # number in the last request
    to_be: int  # workers that the run keeps or starts
    up: int  # workers that are ready


class Scaling:
    """The run's side: reads requests, scales the workers, writes answers."""

    def __init__(self, folder: Path, workers: FleetClient, note: Callable[[str], None]) -> None:
        self._folder, self._workers, self._note = folder, workers, note
        self._asked: int | None = None
        self._told: Workers | None = None
        self._looked_at = 0.0
        (folder / TAKEN).unlink(missing_ok=True)  # left by a run that died before it answered

    def look(self) -> None:
        """Carry out a request, and write an answer if the number of workers has changed."""
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        requested = self._take()
        if requested is not None:
            self._asked = max(1, requested)
            self._note(
                f"{self._asked} rollout workers are requested; the run has {self._workers.num_workers}"
            )
            self._workers.scale(self._asked)
        workers = Workers(self._asked, self._workers.num_workers, self._workers.num_up)
        if workers != self._told:
            write_atomically(self._folder / FOUND, json.dumps(asdict(workers)))
            self._told = workers
        (self._folder / TAKEN).unlink(missing_ok=True)  # the answer is complete

    def _take(self) -> int | None:
        """Return the requested number. Rename the file first, so that a newer request is not lost."""
        taken = self._folder / TAKEN
        try:
            os.replace(self._folder / ASKED, taken)
        except FileNotFoundError:
            return None
        match _read(taken):
            case {"workers": int(asked)} if not isinstance(asked, bool):
                return asked
        got = taken.read_text(errors="replace")[:80]
        self._note(f'{self._folder / ASKED} was removed: expected {{"workers": N}}, got {got!r}')
        return None


def ask(folder: Path, num_workers: int, timeout_s: float) -> None:
    """Ask a run for `num_workers` workers, and wait until they are up.

    Raises:
        InputError: no run is running in this folder.
        RunError: the run could not start so many workers.
        DeadlineExceeded: the workers are not up after `timeout_s` seconds.
    """
    write_atomically(folder / ASKED, json.dumps({"workers": num_workers}))
    deadline = time.monotonic() + timeout_s
    try:
        while not _is_answered(folder, num_workers):
            if not run_claim.is_held(folder):
                raise InputError(
                    f"{folder}: no run is active here; start it with rollout.num_workers={num_workers}"
                )
            if time.monotonic() > deadline:
                answer = _read(folder / FOUND) or "no answer"
                raise DeadlineExceeded(f"waited {timeout_s:g} s for {num_workers} workers: {answer}")
            time.sleep(LOOK_S / 4)
    except BaseException:
        if _read(folder / ASKED) == {"workers": num_workers}:  # otherwise another command made the request
            (folder / ASKED).unlink(missing_ok=True)
        raise


def _is_answered(folder: Path, num_workers: int) -> bool:
    """Return whether the requested workers are up.

    Raises:
        RunError: the run keeps another number of workers.
    """
    if (folder / ASKED).exists() or (folder / TAKEN).exists():  # in this order: ASKED is renamed to TAKEN
        return False
    match _read(folder / FOUND):
        case {"asked": int(asked), "to_be": int(to_be), "up": int(up)} if asked == num_workers:
            if to_be != num_workers:
                raise RunError(f"{folder}: the run keeps {to_be} workers; the reason is on its console")
            return up == num_workers
    return False


def _read(file: Path) -> Any:
    """Read a JSON file; return None if it is missing or damaged, because the run rewrites it."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return json.loads(file.read_text())
    return None
