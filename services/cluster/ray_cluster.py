"""Ray for the time of a command: joined, or started on this machine, with its errors in plain words.

    temporary folder checked ─▶ ray.init ─▶ … ─▶ ray.shutdown
                                   │ failed: end its processes and try once more

Ray 2.60 has no settings for five things that it does to a driver; `tamed` replaces its functions for these.
Importing this module imports Ray.
"""

import contextlib
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._common.utils import get_default_ray_temp_dir
from ray._private import node, ray_constants, services, utils, worker

from contracts.errors import InputError, RunError
from contracts.network.access import protect_rays_token
from reward_servers.serving.ray_job import own_job
from services.cluster.open_cluster import START_ONE, warning_if_open
from services.cluster.ray_variables import PATIENCE_S, PATIENT, patient
from services.terminal.interrupts import give_up, handlers_kept

SOCKET_PATH = 107  # longest path of a socket, in bytes
SOCKET = "session_2026-01-31_12-00-00_000000_1234567/sockets/plasma_store"  # example of Ray's name for one
LEAST_BYTES = 32 * 2**20  # for its logs
LOOK_S = 0.2
LONGER = 2  # times the patience at the second try
KNOCK_S = 5.0
RAYLET = "raylet"
DAEMONS = (RAYLET, "gcs_server")  # a run can't go on without them
COLOURS = re.compile(r"\x1b\[[0-9;]*m")

Note = Callable[[str], None]
PrintLines = Callable[[dict[str, Any], bool], None]  # lines of a process, and whether to omit its name
FAILURES = (RunError, RuntimeError, OSError, ray.exceptions.RayError)  # of a start

OF_DAEMONS = (RAYLET, "gcs_server", "autoscaler")  # the names that Ray gives in place of a process id

_raylet_log = logging.getLogger(RAYLET)
_raylet_log.addHandler(logging.NullHandler())  # so that a command without a log file shows nothing of it


@contextlib.contextmanager
def cluster(note: Note = lambda _: None, *, log_to_driver: bool = False) -> Iterator[None]:
    """Join the cluster of RAY_ADDRESS, or start one on this machine's loopback (see `ray_variables`).

    Args:
        note: called with a message about a start that is tried again, or a cluster that asks for no token.
        log_to_driver: whether to show the output of actors.

    Raises:
        InputError: no cluster answers at RAY_ADDRESS, or Ray's temporary folder can't be used.
        RunError: Ray does not start.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.rllib.utils.actor_manager").setLevel(logging.CRITICAL)  # the fleet reports it
    quiet = {"log_to_driver": log_to_driver, "logging_level": logging.ERROR}
    with handlers_kept():  # with Ray's own handlers, SIGTERM would drain a node for half a minute
        if "RAY_ADDRESS" in os.environ:
            _join(quiet, note)
        else:
            check_folder()
            _start(quiet, note)
    try:
        with _daemons_watched():
            yield
    finally:
        ray.shutdown()


def check_folder() -> None:
    """Refuse a temporary folder that Ray can't use: Ray would fail minutes later, with a long trace.

    Raises:
        InputError: its sockets' paths would be too long, or it can't be written.
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
    if context.dashboard_url and (told := warning_if_open(f"http://{context.dashboard_url}")):
        note(told)


def _start(quiet: dict[str, Any], note: Note) -> None:
    """Start Ray on this machine, with a second try if the first one fails.

    Raises:
        RunError: both tries failed.
    """
    try:
        _init(quiet)
    except FAILURES as error:
        note(
            f"Ray did not start: {_first_line(error)}; it is tried once more, and may take {LONGER} times as "
            "long. A machine that is busy, or short of memory or disk, starts it slowly"
        )
        try:
            _init(quiet, patience_s=LONGER * PATIENCE_S)
        except FAILURES as again:
            raise RunError(
                f"Ray did not start on this machine, twice: {_first_line(again)}. Its logs are in {_logs()}. "
                "See whether processors, memory and disk have room (whetstone doctor says), and try again"
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
        if type(error) is Exception:  # Ray raises plain Exception when its own start fails
            raise RunError(_first_line(error)) from error
        raise


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


@contextlib.contextmanager
def raylets_wait(seconds: int) -> Iterator[None]:
    """Let raylets that start in this context wait so long for processes of theirs, unless the user said."""
    waits = {name: value for name, value in patient(seconds).items() if os.environ.get(name) == PATIENT[name]}
    os.environ.update(waits)
    try:
        yield
    finally:
        os.environ.update({name: PATIENT[name] for name in waits})


@contextlib.contextmanager
def tamed(patience_s: int = PATIENCE_S) -> Iterator[None]:
    """Change how Ray treats the driver, for calls inside of this context.

    - Ray's processes start in a session of their own. So signals to this process's group reach the driver
      alone, which still needs these processes to save.
    - Ray sets no signal handlers, neither in Python nor in C, where SIGTERM would abort the driver.
    - Ray waits for a slow raylet, and not for one that has ended.
    - Ray starts no autoscaler: the one machine never becomes two.
    """
    replaced: list[tuple[Any, str, Any]] = [
        (utils, "set_kill_on_parent_death_linux", _in_new_session(utils.set_kill_on_parent_death_linux)),
        (utils, "set_sigterm_handler", lambda handler: None),
        (ray_constants, "RAY_DISABLE_FAILURE_SIGNAL_HANDLER", True),
        (node.Node, "start_monitor", lambda self: None),
        (services, "get_node", _patiently(services.get_node, patience_s)),
        (ray_constants, "NUM_REDIS_GET_RETRIES", patience_s // 3),  # seconds; a dead head service takes all
    ]
    kept = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, ours in replaced:
        setattr(module, name, ours)
    try:
        yield
    finally:
        for module, name, theirs in kept:
            setattr(module, name, theirs)


def _in_new_session(prepare: Callable[[], None]) -> Callable[[], None]:
    """Return the function that Ray calls in each new process before it executes another program."""

    def call() -> None:
        os.setsid()
        prepare()

    return call


def _patiently(get_node: Callable[[str, str], Any], patience_s: int) -> Callable[[str, str], Any]:
    """Wrap Ray's look-up of the new node so that it waits until the node is there.

    Raises:
        RunError: the raylet ended, or was not up after `patience_s`.
    """
    deadline = time.monotonic() + patience_s

    def wait_for_node(gcs_address: str, node_id: str) -> Any:
        while True:
            try:
                return get_node(gcs_address, node_id)
            except RuntimeError:
                if _has_ended():
                    raise RunError(f"its raylet ended while it started{_last_words()}") from None
                if time.monotonic() > deadline:
                    raise RunError(f"its raylet was not up after {patience_s} s{_last_words()}") from None
            time.sleep(LOOK_S)

    return wait_for_node


def _has_ended() -> bool:
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
def _daemons_watched() -> Iterator[None]:
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


def _last_words() -> str:
    """Return the last line of the raylet's error log, after a colon; or nothing."""
    with contextlib.suppress(OSError):
        lines = (_logs() / "raylet.err").read_text(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f": {said[-1][:200]}" if said else ""
    return ""


def _logs() -> Path:
    """Return the log folder of the Ray that this process started last."""
    folder = Path(get_default_ray_temp_dir())
    sessions = sorted(folder.glob(f"session_*_{os.getpid()}"))
    return (sessions[-1] if sessions else folder) / "logs"


def _without_daemons(print_lines: PrintLines) -> PrintLines:
    """Print the output of actors as Ray does, and write the output of its daemons into the log."""

    def tell(data: dict[str, Any], ignore_prefix: bool) -> None:
        if data.get("pid") not in OF_DAEMONS:
            print_lines(data, ignore_prefix)
            return
        for line in data.get("lines", ()):
            _raylet_log.warning("%s", COLOURS.sub("", str(line)).strip())

    return tell


# Ray's own function would mix the coloured output of daemons into the console.
worker.print_to_stdstream = _without_daemons(worker.print_to_stdstream)
