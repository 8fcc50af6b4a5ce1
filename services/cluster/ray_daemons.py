"""Daemons of the Ray that this process started: which still run, and what the last one said."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
from ray._common.utils import get_default_ray_temp_dir

from services.terminal.interrupts import give_up

LOOK_S = 0.2
RAYLET = "raylet"
DAEMONS = (RAYLET, "gcs_server")  # a run can't go on without them


def has_ended() -> bool:
    """Return whether no raylet that this process started still runs."""
    return RAYLET not in _running()


def _running() -> set[str]:
    """Return the daemons of Ray that this process started and that still run."""
    found = set()
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.name())
    return found & set(DAEMONS)


@contextlib.contextmanager
def daemons_watched() -> Iterator[None]:
    """End the command when one of Ray's daemons dies: Ray would end it silently, or after a minute."""
    is_over, there = threading.Event(), _running()

    def watch() -> None:
        while not is_over.wait(LOOK_S):
            if (lost := there - _running()) and not is_over.is_set():
                give_up(f"Ray's {' and '.join(sorted(lost))} died, and every part of the run with it")

    threading.Thread(target=watch, name="daemons", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def last_words() -> str:
    """Return the last line of the raylet's error log, after a colon; or nothing."""
    with contextlib.suppress(OSError):
        lines = (logs() / "raylet.err").read_text(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f": {said[-1][:200]}" if said else ""
    return ""


def logs() -> Path:
    """Return the log folder of the Ray that this process started last."""
    folder = Path(get_default_ray_temp_dir())
    sessions = sorted(folder.glob(f"session_*_{os.getpid()}"))
    return (sessions[-1] if sessions else folder) / "logs"
