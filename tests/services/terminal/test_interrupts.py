"""Signals interrupt at once where nothing is to be saved; else the first asks, and the next insists.

What a whole process does is tried on processes of their own.
"""

import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.terminal import interrupts
from services.terminal.interrupts import (
    Interrupted,
    StopRequest,
    Terminated,
    interruptible,
    take_ctrl_c,
)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def no_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each signal counts, unless a test says otherwise."""
    monkeypatch.setattr(interrupts, "ECHO_S", 0.0)


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    request = StopRequest()
    request.hold()
    yield request
    request.restore()


def test_without_a_signal_nothing_is_asked(stop: StopRequest) -> None:
    stop.check()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_and_interrupts_nothing_by_itself(stop: StopRequest, number: int) -> None:
    os.kill(os.getpid(), number)

    with pytest.raises(Interrupted):
        stop.check()


@pytest.mark.parametrize("number", SIGNALS)
def test_the_second_signal_interrupts_at_once(stop: StopRequest, number: int) -> None:
    os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("second", SIGNALS)
def test_a_second_signal_within_a_second_is_the_same_request(
    stop: StopRequest, second: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "ECHO_S", 3600.0)
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(3):
        os.kill(os.getpid(), second)

    with pytest.raises(Interrupted):
        stop.check()


def test_an_echo_that_comes_once_all_is_saved_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "ECHO_S", 3600.0)
    with interruptible("x"):
        request = StopRequest()
        request.hold()
        os.kill(os.getpid(), signal.SIGINT)
        request.restore()
        os.kill(os.getpid(), signal.SIGINT)


def test_requests_that_are_handed_on_never_interrupt() -> None:
    request, heard = StopRequest(), list[int]()
    request.hold(lambda: heard.append(1), never_insists=True)
    try:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        request.restore()
    assert len(heard) == 3
    with pytest.raises(Interrupted):
        request.check()


@pytest.mark.parametrize("number", SIGNALS)
def test_what_only_starts_is_interrupted_at_once(number: int) -> None:
    kind = KeyboardInterrupt if number == signal.SIGINT else Terminated
    with interruptible("x"), pytest.raises(kind):
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_what_the_parent_ignores_stays_ignored(number: int) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with interruptible("x"):
            os.kill(os.getpid(), number)
            request = StopRequest()
            request.hold()
            os.kill(os.getpid(), number)
            request.check()
            request.restore()
            take_ctrl_c()
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_afterwards_the_handlers_are_those_before() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with interruptible("x"):
        outside = [signal.getsignal(number) for number in SIGNALS]
        request = StopRequest()
        request.hold()
        assert [signal.getsignal(number) for number in SIGNALS] not in (before, outside)
        request.restore()
        assert [signal.getsignal(number) for number in SIGNALS] == outside
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_the_first_request_is_told_at_once_though_the_loop_has_not_looked() -> None:
    notes = list[str]()
    with interruptible("x"):
        request = StopRequest(lambda: notes.append("asked"))
        request.hold()
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_S
        while not notes and time.monotonic() < deadline:
            time.sleep(0.01)
        request.restore()
    assert notes == ["asked"]


# ---- whole processes ----


def run_script(tmp_path: Path, text: str, *, ignoring: int | None = None) -> "subprocess.Popen[str]":
    """Start a script, and come back when it has said that it is ready."""
    file = tmp_path / "script.py"
    file.write_text(
        "import os, signal, subprocess, sys, time\nfrom services.terminal import interrupts\n"
        + textwrap.dedent(text)
    )
    process = subprocess.Popen(
        [sys.executable, str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONWARNINGS": "ignore"},
        preexec_fn=None if ignoring is None else lambda: signal.signal(ignoring, signal.SIG_IGN) and None,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    return process


STUCK = """
    import ctypes
    interrupts.ENDS_WITHIN_S = 0.5
    with interrupts.interruptible("whetstone train"):
        interrupts.on_interruption(lambda: "checkpoint 4 is whole")
        child = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print("ready", flush=True)
        print(child.pid, flush=True)
        {}
"""
IN_C = """lock = ctypes.create_string_buffer(64)
        ctypes.CDLL(None).pthread_mutex_lock(lock)
        ctypes.CDLL(None).pthread_mutex_lock(lock)"""
SWALLOWS = """while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass"""


def await_stillness(pid: int) -> None:
    """Wait until the main thread waits for something, and goes on waiting."""
    num_still, deadline = 0, time.monotonic() + PATIENCE_S
    while num_still < 10:
        state = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        num_still = num_still + 1 if state == "S" else 0
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("stuck", [IN_C, SWALLOWS], ids=["waits in a library", "swallows exceptions"])
def test_what_does_not_end_by_itself_is_ended_with_all_that_it_started(tmp_path: Path, stuck: str) -> None:
    process = run_script(tmp_path, STUCK.format(stuck))
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    await_stillness(process.pid)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 130
    assert errors.splitlines()[-1] == "whetstone train: interrupted; checkpoint 4 is whole"
    psutil.wait_procs([child], timeout=PATIENCE_S)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_forked_process_that_is_ended_does_not_end_the_command(tmp_path: Path) -> None:
    process = run_script(
        tmp_path,
        """
        interrupts.ENDS_WITHIN_S = 0.2
        with interrupts.interruptible("x"):
            child = os.fork()
            if not child:
                time.sleep(1000)
            time.sleep(0.3)
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
            print("ready", flush=True)
            time.sleep(1.0)
            os._exit(7)
        """,
    )
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 7


def test_a_pool_that_a_reward_forks_ends_at_once_and_prints_nothing(tmp_path: Path) -> None:
    """A pool ends its processes by SIGTERM, also while they hold a lock."""
    process = run_script(
        tmp_path,
        """
        import multiprocessing
        stop = interrupts.StopRequest()
        with interrupts.interruptible("x"):
            for hold in (lambda: None, stop.hold):
                hold()
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    pool.map(len, ["a", "bc"])
                child = os.fork()
                if not child:
                    time.sleep(1000)
                time.sleep(0.3)
                os.kill(child, signal.SIGTERM)
                assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
            print("ready", flush=True)
            os._exit(7)
        """,
    )
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (7, "")


def test_a_job_in_the_background_heeds_sigterm_and_no_ctrl_c(tmp_path: Path) -> None:
    """As a shell starts it with `&` from a script."""
    process = run_script(
        tmp_path,
        """
        from services import cli
        def run(arguments):
            print("ready", flush=True)
            time.sleep(1000)
        cli.COMMANDS["x"] = ("__main__:run", "")
        sys.exit(cli.main(["x"]))
        """,
        ignoring=signal.SIGINT,
    )
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and errors == "whetstone x: interrupted\n"


def test_ctrl_c_that_is_for_an_answer_ends_no_command(tmp_path: Path) -> None:
    """As in `whetstone chat`."""
    process = run_script(
        tmp_path,
        """
        from services import cli
        interrupts.ENDS_WITHIN_S = 0.2
        def run(arguments):
            interrupts.take_ctrl_c()
            said = "ready"
            while True:
                try:
                    print(said, flush=True)
                    time.sleep(1000)
                except interrupts.Terminated:
                    raise
                except KeyboardInterrupt:
                    said = "an answer was stopped"
        cli.COMMANDS["x"] = ("__main__:run", "")
        sys.exit(cli.main(["x"]))
        """,
    )
    assert process.stdout is not None
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "an answer was stopped\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.6)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 130


def test_a_terminal_that_goes_away_is_a_request_to_stop(tmp_path: Path) -> None:
    """A message at that time must not keep the run from being saved."""
    file = tmp_path / "script.py"
    file.write_text(
        textwrap.dedent(
            f"""
            import time
            from pathlib import Path
            from services.runs.tracking.console import open_console
            from services.terminal.interrupts import Interrupted, StopRequest
            console, stop = open_console(), StopRequest()
            stop.hold()
            console.note("ready")
            try:
                while True:
                    console.note("still here")
                    time.sleep(0.01)
                    stop.check()
            except Interrupted:
                console.note("saving")
                Path({str(tmp_path / "saved")!r}).touch()
            """
        )
    )
    pid, terminal = pty.fork()
    if not pid:
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[3])
        os.environ["TERM"] = "dumb"
        os.execv(sys.executable, [sys.executable, str(file)])
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1000)
    os.close(terminal)

    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (tmp_path / "saved").exists()


def test_nobody_who_reads_along_keeps_a_run_from_being_saved(tmp_path: Path) -> None:
    """As in `whetstone train | tee log`, where Ctrl-C ends `tee` first."""
    process = run_script(
        tmp_path,
        """
        from services.runs.tracking.console import open_console
        console, stop = open_console(), interrupts.StopRequest()
        stop.hold()
        print("ready", flush=True)
        try:
            stop.wait()
        except interrupts.Interrupted:
            for _ in range(3):
                console.note("saving")
            print("Stopped and saved")
            sys.exit(130)
        """,
    )
    assert process.stdout is not None
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
