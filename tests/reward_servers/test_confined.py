"""Confined programs: whatever a sample does, it costs that sample, and nothing outside of it changes."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from contracts.errors import InputError, RewardError
from contracts.settings import build
from reward_servers.deadlines import check_deadlines
from reward_servers.isolation.confined import Confined, Outcome
from reward_servers.isolation.limits import Limits
from reward_servers.isolation.system_calls import has_seccomp
from reward_servers.settings import Part, RewardServersSettings

pytestmark = pytest.mark.skipif(not has_seccomp(), reason="this machine has no libseccomp")

CODE = "reward_servers.verifiers.code"
GOOD = Outcome("3\n")
HOSTILE = {
    "tower of powers": ("print(9**9**9**9)", "time"),
    "endless loop": ("while True: pass", "time"),
    "endless loop that ignores the signal": (
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        "time",
    ),
    "fork bomb": ("import os\nwhile True: os.fork()", "exit code 1"),
    "stubborn fork bomb": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "time",
    ),
    "thread bomb": (
        "import threading, time\nthreading.stack_size(32768)\n"
        "while True: threading.Thread(target=time.sleep, args=(99,)).start()",
        "threads",
    ),
    "other program": ("import subprocess\nsubprocess.run(['id'])", "exit code 1"),
    "10 GB": ("x = bytearray(10 * 2**30)", "exit code 1"),
    "10 GB in pieces": ("x = []\nwhile True: x.append(bytearray(2**20))", "exit code 1"),
    "10 GB in a file": ("f = open('f', 'wb')\nwhile True: f.write(bytes(2**20))", "exit code 1"),
    "10 GB in files": (
        "import itertools\nfor i in itertools.count(): open(str(i), 'wb').write(bytes(2**20))",
        "files",
    ),
    "10 GB of output": ("while True: print('x' * 10000)", "output"),
    "shared memory": ("open('/dev/shm/whetstone', 'w')", "exit code 1"),
    "os._exit": ("import os\nos._exit(3)", "exit code 3"),
    "crash": ("import ctypes\nctypes.string_at(0)", "signal 11"),
    "abort": ("import os\nos.abort()", "signal 6"),
    "kill the server": ("import os\nos.kill(os.getppid(), 9)", "exit code 1"),
    "kill everything": ("import os\nos.kill(-1, 9)", "exit code 1"),
    "raise the limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
        "exit code 1",
    ),
    "closed output": ("import os\nos.close(1)\nwhile True: pass", "time"),
}


@pytest.fixture(scope="module")
def work() -> Iterator[Confined]:
    yield Confined(CODE, Limits(seconds=4.0, memory_gib=0.25, file_mib=8.0, parallel=2))


def program(code: str, stdin: str = "") -> list[dict[str, str]]:
    return [{"code": code, "stdin": stdin}]


def outcome(work: Confined, code: str, stdin: str = "") -> Outcome:
    ((result,),) = work.run([program(code, stdin)])
    return result


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_sample_costs_itself_alone(work: Confined, name: str) -> None:
    code, why = HOSTILE[name]
    before, good, after = work.run([program("print(1 + 2)"), program(code), program("print(3)")])[:3]
    assert before == [GOOD] and after == [GOOD]
    assert good[0].why == why
    server = work._server
    assert server is not None and server._process.poll() is None
    assert psutil.Process(server._process.pid).children(recursive=True) == []


@pytest.mark.long
def test_many_loops_at_once_leave_the_quick_samples_theirs() -> None:
    work = Confined(CODE, Limits(seconds=2.0, parallel=2))
    jobs = [program("while True: pass")] * 4 + [program("print(input())", str(n)) for n in range(10)]
    outcomes = work.run(jobs)
    assert [one.why for (one,) in outcomes[:4]] == ["time"] * 4
    assert [one for (one,) in outcomes[4:]] == [Outcome(f"{n}\n") for n in range(10)]


def test_nothing_is_written_removed_or_changed_outside_of_the_samples_folder(
    work: Confined, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("whole")
    mode = victim.stat().st_mode
    for code in (
        f"open({str(victim)!r}, 'w').write('x')",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"import os; os.remove({str(victim)!r})",
        f"import os; os.rename({str(victim)!r}, 'mine')",
        f"import os; os.truncate({str(victim)!r}, 0)",
        f"import os; os.chmod({str(victim)!r}, 0o777)",
        f"import os; os.utime({str(victim)!r}, (0, 0))",
        f"import os; os.symlink({str(victim)!r}, 'link'); open('link', 'a').write('x')",
        f"import os; os.mkdir({str(tmp_path / 'folder')!r})",
    ):
        assert outcome(work, code).why == "exit code 1", code
    assert victim.read_text() == "whole" and victim.stat().st_mode == mode
    assert os.listdir(tmp_path) == ["victim"]


def test_each_sample_has_an_empty_folder_that_is_gone_afterwards(work: Confined) -> None:
    code = (
        "import os\nprint(os.listdir('.'), os.getcwd())\nopen('a', 'w').write('x')\nprint(open('a').read())"
    )
    first, second = outcome(work, code), outcome(work, code)
    assert first.output.startswith("[] ") and first.output.endswith("\nx\n")
    assert second.output.startswith("[] ")
    assert not Path(first.output.split()[1]).exists()


def test_the_network_is_closed_on_loopback_too(work: Confined) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {listening.getsockname()[1]}))"
        assert outcome(work, code).why == "exit code 1"
        with pytest.raises(TimeoutError):
            listening.accept()


def test_no_secrets_are_in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "very-secret-value")
    confined = Confined(CODE, Limits())
    assert "very-secret" not in outcome(confined, "import os\nprint(os.environ)").output
    parent = f"/proc/{os.getpid()}/environ"
    assert "very-secret" not in outcome(confined, f"print(open({parent!r}).read())").output


def test_ordinary_programs_work(work: Confined) -> None:
    assert (
        outcome(work, "if __name__ == '__main__':\n    print(sum(map(int, input().split())))", "1 2") == GOOD
    )
    assert outcome(work, "import sys\nprint(sys.stdin.read().strip())\nsys.exit()", "3") == GOOD
    assert outcome(work, "import threading\nt = threading.Thread(target=print, args=(3,))\nt.start()") == GOOD
    assert outcome(work, "import asyncio\nasync def f(): print(3)\nasyncio.run(f())") == GOOD
    assert outcome(work, "import numpy as np\nprint(int(np.ones((1, 3)).sum()))") == GOOD
    assert (
        outcome(work, "from dataclasses import dataclass\n@dataclass\nclass A: x: int\nprint(A(3).x)") == GOOD
    )
    assert outcome(work, "import os\nprint(3, flush=True)\nos._exit(0)") == GOOD
    assert outcome(work, "print(3)\nraise ValueError") == Outcome("3\n", "exit code 1")


def test_the_runs_of_a_job_share_its_time_and_nothing_else(work: Confined) -> None:
    code = "import builtins as b\nprint(getattr(b, 'left', 3))\nb.left = 4\nloop = input()\nwhile loop: pass"
    job = [{"code": code, "stdin": stdin} for stdin in ("\n", "\n", "x\n", "\n")]
    assert work.run([job]) == [[GOOD, GOOD, Outcome("3\n", "time")]]


def test_what_a_batch_does_not_reach_is_the_next_batch() -> None:
    # Five loops outlast a batch. On a busy machine a batch may start slowly, so it has eight seconds.
    confined = Confined(CODE, Limits(seconds=2.0, batch_seconds=8.0, parallel=1))
    *loops, last = confined.run([program("while True: pass")] * 5 + [program("print(3)")])
    assert [run.why for (run,) in loops] == ["time"] * 5
    assert last == [GOOD]


def test_a_batch_that_reaches_no_sample_is_an_error_and_no_score() -> None:
    confined = Confined(CODE, Limits(seconds=0.001, batch_seconds=0.002))
    with pytest.raises(
        RewardError, match=r"none of 1 samples was reached within limits\.batch_seconds=0\.002"
    ):
        confined.run([program("import time; time.sleep(1)")])


def test_a_sample_needs_less_time_than_its_batch() -> None:
    with pytest.raises(InputError, match=r"seconds=60 for a sample and batch_seconds=45"):
        build(Limits, {"seconds": 60}, "limits")


def test_a_sandbox_may_not_end_a_batch_before_its_own_limits_do() -> None:
    servers = build(RewardServersSettings, {"math": {"sandbox": {}, "timeout_s": 50}}, "reward_servers")
    with pytest.raises(
        InputError, match=r"limits\.batch_seconds=45: expected reward_servers\.math\.sandbox=null"
    ):
        check_deadlines([Part(name="math")], servers)
    check_deadlines([Part(name="math", limits={"batch_seconds": 19})], servers)
    check_deadlines([Part(name="length", label="math")], servers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_fork_server_that_dies_or_hangs_is_started_anew_and_costs_no_sample(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reward_servers.isolation.confined.GRACE_S", 1.0)
    work = Confined(CODE, Limits(seconds=1, batch_seconds=2))
    assert outcome(work, "print(3)") == GOOD
    assert work._server is not None
    work._server._process.send_signal(number)
    assert outcome(work, "print(3)") == GOOD


def test_one_that_hangs_again_is_an_error_that_names_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reward_servers.isolation.confined.GRACE_S", 0.5)
    work, started = Confined(CODE, Limits(seconds=0.2, batch_seconds=0.5)), Confined._started

    def stopped(self: Confined) -> Any:
        server = started(self)
        server._process.send_signal(signal.SIGSTOP)
        return server

    monkeypatch.setattr(Confined, "_started", stopped)
    with pytest.raises(RewardError, match=r"no answer within 1 s and was ended; raise limits\.batch_seconds"):
        outcome(work, "print(3)")


def test_it_ends_with_the_process_that_started_it() -> None:
    code = (
        "from reward_servers.isolation.confined import Confined\n"
        "from reward_servers.isolation.limits import Limits\n"
        f"work = Confined({CODE!r}, Limits())\n"
        "work.run([[{'code': 'print(3)', 'stdin': ''}]])\n"
        "print(work._server._process.pid, flush=True)\n"
        "import os\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_without_landlock_seccomp_forbids_every_write(tmp_path: Path) -> None:
    code = f"""
import os, sys
from reward_servers.isolation import confinement
confinement.landlock_version = lambda: 0
os.chdir({str(tmp_path)!r})
if os.fork() == 0:
    confinement.confine(".", 5, 1, 1)
    for call, *given in ((open, "a", "w"), (os.mkdir, "b"), (os.unlink, "c"), (open, "c", "a")):
        try:
            call(*given)
            print("did")
        except PermissionError:
            print("refused")
    print(open("c").read(), flush=True)
    os._exit(0)
os.wait()
"""
    (tmp_path / "c").write_text("readable")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused"] * 4 + ["readable"]
    assert os.listdir(tmp_path) == ["c"]


@pytest.mark.parametrize("bad", ["exit", "loop"])
def test_samples_share_a_process_until_one_of_them_ends_it(bad: str) -> None:
    work = Confined("tests.reward_servers.shared_work", Limits(seconds=2.0, parallel=2), together=3)
    outcomes = work.run([[sample] for sample in ("fine", "fine", "fine", "fine", bad, "fine", "fine")])
    processes = [outcome.value for (outcome,) in outcomes]
    assert len(set(processes[:3])) == 1  # the first three
    assert processes[4] is None  # alone: it costs its neighbours nothing but their process
    assert len({*processes[2:4], *processes[5:]}) == 4
    ((alone,),) = work.run([["fine"]])
    assert alone.value not in processes
