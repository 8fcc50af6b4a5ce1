"""Join Ray, or start it on this machine, for one command, with its errors in plain words.

    temporary folder checked ─▶ ray.init ─▶ … ─▶ ray.shutdown
                                   │ failed: end its processes and try once more

Importing this module imports Ray.
"""

import contextlib
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._common.utils import get_default_ray_temp_dir
from ray._private import worker

from contracts.errors import InputError, RunError
from contracts.network.access import protect_rays_token
from reward_servers.serving.ray_job import objects_published, own_job
from services.cluster.open_cluster import START_ONE, warning_if_open
from services.cluster.ray_daemons import RAYLET, daemons_watched, logs
from services.cluster.ray_variables import PATIENCE_S
from services.cluster.tamed_ray import raylets_wait, tamed
from services.terminal.interrupts import handlers_kept

SOCKET_PATH = 107  # longest path of a socket, in bytes
SOCKET = "session_2026-01-31_12-00-00_000000_1234567/sockets/plasma_store"  # example of Ray's name for one
LEAST_BYTES = 32 * 2**20  # free space that Ray's logs need
LONGER = 2  # times the patience at the second try
OTHER_VERSION = "Version mismatch"  # begins what Ray raises
KNOCK_S = 5.0
COLOURS = re.compile(r"\x1b\[[0-9;]*m")

Note = Callable[[str], None]
PrintLines = Callable[[dict[str, Any], bool], None]  # lines of a process, and whether to omit its name
FAILURES = (RunError, RuntimeError, OSError, ray.exceptions.RayError)  # errors that Ray's start may raise

OF_DAEMONS = (RAYLET, "gcs_server", "autoscaler")  # the names that Ray gives in place of a process id

_raylet_log = logging.getLogger(RAYLET)
_raylet_log.addHandler(logging.NullHandler())  # so a command without a log file does not show it


@contextlib.contextmanager
def cluster(note: Note = lambda _: None, *, log_to_driver: bool = False) -> Iterator[None]:
    """Join the cluster of RAY_ADDRESS, or start one on this machine's loopback (see `ray_variables`).

    Args:
        note: called with a message about a repeated start, or a cluster without a token.
        log_to_driver: whether to show the output of actors.

    Raises:
        InputError: no cluster answers at RAY_ADDRESS, or Ray's temporary folder can't be used.
        RunError: Ray does not start.
    """
    for quiet_one in ("ray", "ray.widgets.util"):  # the latter asks for widgets in a notebook
        logging.getLogger(quiet_one).setLevel(logging.ERROR)
    logging.getLogger("ray.rllib.utils.actor_manager").setLevel(logging.CRITICAL)  # the fleet reports it
    quiet = {"log_to_driver": log_to_driver, "logging_level": logging.ERROR}
    with handlers_kept():  # with Ray's own handlers, SIGTERM would drain a node for half a minute
        if "RAY_ADDRESS" in os.environ:
            _join(quiet, note)
        else:
            check_folder()
            _start(quiet, note)
    try:
        with daemons_watched(), objects_published():
            yield
    finally:
        ray.shutdown()


def check_folder() -> None:
    """Refuse an unusable temporary folder, because Ray would fail minutes later with a long trace.

    Raises:
        InputError: the paths of sockets in the folder would be too long, or the folder is not writable.
    """
    folder = Path(get_default_ray_temp_dir())
    variable = next((name for name in ("RAY_TMPDIR", "TMPDIR") if name in os.environ), None)
    named = f"{variable}={os.environ[variable]}" if variable else str(folder.parent)
    size = len(os.fsencode(folder / SOCKET))
    if size > SOCKET_PATH:
        raise InputError(
            f"{named} is too long: Ray keeps sockets in it, whose paths would have {size} bytes, and "
            f"{SOCKET_PATH} are allowed. Set RAY_TMPDIR to a shorter folder, such as /tmp"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".room-{os.getpid()}"
        with contextlib.ExitStack() as ends:
            descriptor = os.open(probe, os.O_CREAT | os.O_WRONLY, 0o600)
            ends.callback(probe.unlink)
            ends.callback(os.close, descriptor)
            os.posix_fallocate(descriptor, 0, LEAST_BYTES)
    except OSError as error:
        raise InputError(
            f"{named}: Ray keeps its sockets and logs there, and it can't be written: {error.strerror}. "
            "Make room, or set RAY_TMPDIR to another folder"
        ) from None


def _join(quiet: dict[str, Any], note: Note) -> None:
    address = os.environ["RAY_ADDRESS"]
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal() and "://" not in address:  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=KNOCK_S).close()
        with tamed():
            context = ray.init(**quiet, **own_job())
    except OSError as error:
        raise InputError(
            f"RAY_ADDRESS={address}: no Ray cluster answers there ({_first_line(error)}). {START_ONE}. "
            "Or unset RAY_ADDRESS: then the command starts Ray for itself"
        ) from None
    except RuntimeError as error:
        if not str(error).startswith(OTHER_VERSION):
            raise
        raise InputError(
            f"RAY_ADDRESS={address}: {' '.join(str(error).split())}. Every node and this command need the "
            "same Ray and the same Python: make setup PYTHON=… takes another"
        ) from None
    if context.dashboard_url and (warning := warning_if_open(f"http://{context.dashboard_url}")):
        note(warning)


def _start(quiet: dict[str, Any], note: Note) -> None:
    """Start Ray on this machine; if the start fails, try once more.

    Raises:
        RunError: both attempts failed.
    """
    try:
        _init(quiet)
    except FAILURES as error:
        note(
            f"Ray did not start: {_first_line(error)}. Whetstone tries once more, and waits {LONGER} times "
            "as long. Ray starts slowly on a machine that is busy, or short of memory or disk"
        )
        try:
            _init(quiet, patience_s=LONGER * PATIENCE_S)
        except FAILURES as again:
            raise RunError(
                f"Ray failed to start on this machine in two attempts: {_first_line(again)}. Its logs are in "
                f"{logs()}. Check with `whetstone doctor` that CPU, memory and disk are free, and try again"
            ) from again


def _init(quiet: dict[str, Any], patience_s: int = PATIENCE_S) -> None:
    before = set(psutil.Process().children(recursive=True))
    try:
        with tamed(patience_s), raylets_wait(patience_s):
            ray.init(address="local", include_dashboard=False, **quiet, **own_job())
        protect_rays_token()
    except BaseException as error:
        ray.shutdown()
        for process in set(psutil.Process().children(recursive=True)) - before:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if type(error) is Exception:  # Ray raises plain Exception when its start fails
            raise RunError(_first_line(error)) from error
        raise


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def _without_daemons(print_lines: PrintLines) -> PrintLines:
    """Print actors' output like Ray, and write its daemons' output into the log."""

    def tell(data: dict[str, Any], ignore_prefix: bool) -> None:
        if data.get("pid") not in OF_DAEMONS:
            print_lines(data, ignore_prefix)
            return
        for line in data.get("lines", ()):
            _raylet_log.warning("%s", COLOURS.sub("", str(line)).strip())

    return tell


# Ray's own function would mix the coloured output of daemons into the console.
worker.print_to_stdstream = _without_daemons(worker.print_to_stdstream)
