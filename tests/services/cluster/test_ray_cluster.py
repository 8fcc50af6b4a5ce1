"""Ray as started by a command: impossible starts are refused in a line, slow ones are awaited."""

import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from contracts.errors import InputError, RunError
from services import cli
from services.cluster.open_cluster import MAKE_A_TOKEN
from services.cluster.ray_variables import OF_ONES_OWN, PATIENT, prepare_ray
from services.terminal.interrupts import interruptible
from tests.free_ports import free_port
from tests.runs import ROOT

PATIENCE_S = 120.0
LONG = "/tmp/" + "a-folder-with-a-long-name/" * 3


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# ---- what can't work ----


@pytest.mark.parametrize(
    ("address", "left"), [("", None), (" ", None), ("10.0.0.1:6379", "10.0.0.1:6379"), (None, None)]
)
def test_a_blank_address_is_no_cluster(
    address: str | None, left: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*OF_ONES_OWN, *PATIENT, "RAY_COLOR_PREFIX"):
        monkeypatch.setenv(name, "")  # so that what is set here ends with the test
        monkeypatch.delenv(name)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    prepare_ray()
    assert os.environ.get("RAY_ADDRESS") == left
    assert (OF_ONES_OWN.keys() <= os.environ.keys()) == (left is None)


@pytest.mark.parametrize("variable", ["RAY_TMPDIR", "TMPDIR"])
def test_a_folder_whose_sockets_would_have_too_long_names_is_refused(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.cluster.ray_cluster import check_folder

    monkeypatch.setenv(variable, LONG)
    with pytest.raises(
        InputError, match=rf"{variable}={LONG} is too long: .* 1\d\d bytes, and 107 are allowed"
    ):
        check_folder()


def test_the_longest_name_that_is_taken_is_one_that_ray_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private.utils import validate_socket_filepath

    from services.cluster.ray_cluster import SOCKET, SOCKET_PATH, check_folder

    room = SOCKET_PATH - len(f"/ray/{SOCKET}")
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/" + "a" * (room - len("/tmp/")))
    check_folder()
    validate_socket_filepath(f"{os.environ['RAY_TMPDIR']}/ray/{SOCKET}")
    Path(os.environ["RAY_TMPDIR"], "ray").rmdir()
    Path(os.environ["RAY_TMPDIR"]).rmdir()
    monkeypatch.setenv("RAY_TMPDIR", os.environ["RAY_TMPDIR"] + "a")
    with pytest.raises(InputError, match="too long"):
        check_folder()


def test_a_folder_that_can_not_be_written_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from services.cluster.ray_cluster import check_folder

    monkeypatch.setenv("RAY_TMPDIR", "/proc/nowhere")
    with pytest.raises(
        InputError, match=r"RAY_TMPDIR=/proc/nowhere: .* can't be written: .*RAY_TMPDIR to another"
    ):
        check_folder()


def test_a_full_disk_is_said_to_be_full_and_nothing_is_left_on_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from services.cluster.ray_cluster import check_folder

    def is_full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    short = Path("/tmp") / f"full-{os.getpid()}"
    monkeypatch.setenv("RAY_TMPDIR", str(short))
    monkeypatch.setattr("os.posix_fallocate", is_full)
    with pytest.raises(InputError, match=r"can't be written: No space left on device\. Make room, or set"):
        check_folder()
    assert list((short / "ray").iterdir()) == []
    (short / "ray").rmdir()
    short.rmdir()


def test_the_command_answers_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", LONG)
    assert cli.main(["serve", "length", "--port", str(free_port())]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"whetstone serve: RAY_TMPDIR={LONG} is too long")


def test_an_address_where_nobody_answers_is_refused_soon(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert cli.main(["serve", "length", "--port", str(free_port())]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("whetstone serve: RAY_ADDRESS=127.0.0.1:1: no Ray cluster answers there")
    assert line.index(MAKE_A_TOKEN) < line.index("ray start --head")  # else it is open to everybody


def test_a_cluster_of_another_python_is_refused_with_both_versions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray's own check runs, on what a cluster of another Python tells."""
    import ray
    from ray._private.utils import check_version_info

    other = {"ray_version": ray.__version__, "python_version": "3.10.2"}
    monkeypatch.setattr(ray, "init", lambda **_: check_version_info(other, "127.0.0.1", True))
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        assert cli.main(["serve", "length", "--port", str(free_port())]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert (
        "Python: 3.10.2 This process" in message and "This process on 127.0.0.1 was started with" in message
    )
    assert "make setup PYTHON=" in message


def test_a_traceback_that_can_not_be_written_hides_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fails(arguments: list[str]) -> int:
        raise ValueError("what really went wrong")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", is_full)
    monkeypatch.setattr("services.commands.report.run", fails)
    assert cli.main(["report"]) == 1
    assert capsys.readouterr().err == (
        "whetstone report: unexpected ValueError: what really went wrong "
        "(its traceback could not be written: No space left on device)\n"
    )


# ---- a Ray that starts badly, and one that runs ----


def raylet_of_a_kind(folder: Path, first: str) -> str:
    """A program that does this the first time, and is Ray's raylet afterwards."""
    from ray._private import services

    mark, program = folder / "was-here", folder / "raylet"
    program.write_text(
        f"#!/bin/sh\nif [ ! -e {mark} ]; then touch {mark}; {first}; fi\n"
        f'exec {services.RAYLET_EXECUTABLE} "$@"\n'
    )
    program.chmod(0o755)
    return str(program)


@pytest.mark.ray
@pytest.mark.long
def test_a_start_that_fails_is_tried_once_more_and_then_ray_is_as_a_command_needs_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    import ray
    from ray._private import services

    from services.cluster.ray_cluster import cluster

    # A raylet opens its file of errors by itself.
    says = "case $word in --stderr_filepath=*) echo 'no memory left' > ${word#*=};; esac"
    program = raylet_of_a_kind(tmp_path, f'for word in "$@"; do {says}; done; exit 3')
    monkeypatch.setattr(services, "RAYLET_EXECUTABLE", program)
    notes: list[str] = []
    with interruptible("x"):
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        with cluster(notes.append):
            assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
            family = psutil.Process().children(recursive=True)
            assert len(family) > 4
            assert all(os.getsid(process.pid) != os.getsid(0) for process in family)
            die_and_be_told_of(ray, caplog)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before

    assert notes == [
        "Ray did not start: its raylet ended while it started: no memory left. Whetstone tries once more, "
        "and waits 2 times as long. Ray starts slowly on a machine that is busy, or short of memory or disk"
    ]
    shown = capfd.readouterr()
    assert "(raylet)" not in shown.out + shown.err and "\x1b[" not in shown.out + shown.err


def die_and_be_told_of(ray: object, caplog: pytest.LogCaptureFixture) -> None:
    """Have a worker of Ray's die, and wait until Ray tells of it."""

    class Fragile:
        def die(self) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    with caplog.at_level(logging.WARNING, "raylet"):
        fragile = ray.remote(Fragile).options(num_cpus=0).remote()  # type: ignore[attr-defined]
        with pytest.raises(ray.exceptions.RayActorError):  # type: ignore[attr-defined]
            ray.get(fragile.die.remote())  # type: ignore[attr-defined]
        deadline = time.monotonic() + PATIENCE_S
        while not any("worker died" in record.message for record in caplog.records):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.ray
@pytest.mark.long
def test_a_ray_that_never_starts_ends_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import services

    from services.cluster.ray_cluster import cluster

    program = raylet_of_a_kind(tmp_path, "true")
    Path(program).write_text("#!/bin/sh\nexit 3\n")
    monkeypatch.setattr(services, "RAYLET_EXECUTABLE", program)
    with (
        pytest.raises(
            RunError, match=r"^Ray failed to start [^\n]* in two attempts: its raylet ended[^\n]*$"
        ),
        cluster(),
    ):
        pass
    deadline = time.monotonic() + PATIENCE_S
    while left := [child for child in psutil.Process().children(recursive=True) if is_alive(child)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A raylet that needs longer than the half minute for which Ray would wait."""
    from ray._private import services

    monkeypatch.setattr(services, "RAYLET_EXECUTABLE", raylet_of_a_kind(tmp_path, "sleep 35"))
    yield


@pytest.mark.ray
@pytest.mark.long
def test_a_slow_raylet_is_waited_for(slow: None) -> None:
    import ray

    from services.cluster.ray_cluster import cluster

    notes: list[str] = []
    with cluster(notes.append):
        assert ray.is_initialized()
    assert notes == []


@pytest.mark.ray
@pytest.mark.long
def test_slow_agents_of_a_raylet_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A raylet that is not told its agents' ports dies after 15 seconds."""
    import ray
    from ray._private import services

    from services.cluster.ray_cluster import cluster

    program, slowly = tmp_path / "raylet", tmp_path / "slowly"
    slowly.write_text('#!/bin/sh\nsleep 25\nexec "$@"\n')
    program.write_text(
        "#!/bin/sh\nfor word do\n  shift\n"
        f'  case $word in --*agent_command=*) word="${{word%%=*}}={slowly} ${{word#*=}}";; esac\n'
        f'  set -- "$@" "$word"\ndone\nexec {services.RAYLET_EXECUTABLE} "$@"\n'
    )
    for path in (program, slowly):
        path.chmod(0o755)
    monkeypatch.setattr(services, "RAYLET_EXECUTABLE", str(program))
    for name, value in PATIENT.items():  # as in a command
        monkeypatch.setenv(name, value)
    notes: list[str] = []
    with cluster(notes.append):
        task = ray.remote(lambda: os.environ["A"]).options(runtime_env={"env_vars": {"A": "b"}}, num_cpus=0)
        assert ray.get(task.remote()) == "b"  # the agent has made the worker's environment
    assert notes == []


OF_A_COMMAND = """
import sys, time
import psutil, ray
from services.terminal.interrupts import interruptible, on_interruption
from services.cluster.ray_variables import prepare_ray
prepare_ray()
from services.cluster import ray_daemons
from services.cluster.ray_cluster import cluster
ray_daemons.STOPPED_S = 2.0
with interruptible("whetstone x"), cluster(log_to_driver=True):
    on_interruption(lambda: "checkpoint 3 is whole")
    class Talker:
        def talk(self):
            print("an actor speaks")
    talker = ray.remote(Talker).options(num_cpus=0).remote()
    ray.get(talker.talk.remote())
    time.sleep(2)
    for process in psutil.Process().children():
        if process.name() == sys.argv[1]:
            process.send_signal(int(sys.argv[2]))
    time.sleep(60)
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("daemon", "number", "ending"),
    [
        ("raylet", signal.SIGKILL, "died, and every part of the run with it"),
        ("raylet", signal.SIGSTOP, "was stopped for 2 s, and no part goes on without it"),
        *(
            pytest.param("gcs_server", number, ending, marks=pytest.mark.long)
            for number, ending in (
                (signal.SIGKILL, "died, and every part of the run with it"),
                (signal.SIGSTOP, "was stopped for 2 s, and no part goes on without it"),
            )
        ),
    ],
)
def test_where_a_daemon_dies_or_is_stopped_the_command_ends_and_says_so(
    daemon: str, number: signal.Signals, ending: str
) -> None:
    """Ray would end it without a word, or after a minute. What actors print is shown until then."""
    command = [sys.executable, "-c", OF_A_COMMAND, daemon, str(int(number))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1] == f"whetstone x: Ray's {daemon} {ending}; checkpoint 3 is whole"
    assert "an actor speaks" in done.stdout
