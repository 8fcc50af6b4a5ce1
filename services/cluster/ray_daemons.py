"""Daemons of the Ray that this process started: their states and the raylet's last error."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
from ray._common.utils import get_default_ray_temp_dir

from services.terminal.interrupts import give_up

LOOK_S = 0.2
STOPPED_S = 30.0  # Ray declares a node dead when a daemon has been stopped for longer than this
RAYLET = "raylet"
DAEMONS = (RAYLET, "gcs_server")  # a run can't go on without them


def has_ended() -> bool:
    """Return whether no raylet that this process started still runs."""
    return RAYLET not in _running()


def _running() -> set[str]:
    """Return the running daemons of this process's Ray."""
    return set(_states())


def _states() -> dict[str, str]:
    """Return the state of each of these daemons, by name, as psutil calls it."""
    states = {}
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if (name := process.name()) in DAEMONS and (state := process.status()) != psutil.STATUS_ZOMBIE:
                states[name] = state
    return states


@contextlib.contextmanager
def daemons_watched() -> Iterator[None]:
    """End the command when one of Ray's daemons dies, or is stopped for `STOPPED_S`.

    Ray would end it silently or after a minute, or wait forever for a node.
    """
    is_over, there = threading.Event(), _running()

    def watch() -> None:
        looks = dict.fromkeys(there, 0)  # at which a daemon was stopped, one after the other
        while not is_over.wait(LOOK_S):
            states = _states()
            if (lost := there - states.keys()) and not is_over.is_set():
                give_up(f"Ray's {' and '.join(sorted(lost))} died, and every part of the run with it")
            for name, state in states.items():
                looks[name] = looks.get(name, 0) + 1 if state == psutil.STATUS_STOPPED else 0
                if looks[name] * LOOK_S > STOPPED_S:
                    give_up(f"Ray's {name} was stopped for {STOPPED_S:.0f} s, and no part goes on without it")

    threading.Thread(target=watch, name="daemons", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def last_words() -> str:
    """Return a colon and the last line of the raylet's error log, or nothing."""
    with contextlib.suppress(OSError):
        lines = (logs() / "raylet.err").read_text(errors="replace").split("\n")
        words = [line.strip() for line in lines if line.strip()]
        return f": {words[-1][:200]}" if words else ""
    return ""


def logs() -> Path:
    """Return the log folder of the Ray that this process started last."""
    folder = Path(get_default_ray_temp_dir())
    sessions = sorted(folder.glob(f"session_*_{os.getpid()}"))
    return (sessions[-1] if sessions else folder) / "logs"
