"""Ways out of the confinement: a program that tries to end, trace, change or read what is not its own.

The victim is another process of the same user, as the learner, a worker or Ray is. Each program uses one
means, and prints `did` for a call that the kernel did, else the error's name.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from reward_servers.isolation.confined import Confined
from reward_servers.isolation.landlock import landlock_version
from reward_servers.isolation.limits import Limits
from reward_servers.isolation.system_calls import COMMANDS, REQUESTS, all_others, has_seccomp

pytestmark = pytest.mark.skipif(not has_seccomp(), reason="this machine has no libseccomp")

CODE = "reward_servers.verifiers.code"
MODULES = {
    "with Landlock": CODE,
    "with Landlock 2": "tests.reward_servers.landlock_2",
    "without": "tests.reward_servers.without_landlock",
}
UPPER = 1 << 32  # the kernel ignores it in a 32-bit argument, and a comparison of 64 bits does not
TOOLS = """
import ctypes, errno, fcntl, os, signal, socket, struct, time
VICTIM = {victim}
UPPER = 1 << 32
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *words):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    failed = libc.syscall(ctypes.c_long(number), *words) < 0
    print(errno.errorcode[ctypes.get_errno()] if failed else 'did')
def attempt(work, *words):
    try:
        work(*words)
        print('did')
    except OSError as error:
        print(errno.errorcode[error.errno])
near, far = socket.socketpair()
word = struct.pack('i', VICTIM)
buffer = ctypes.create_string_buffer(word + bytes(200))
"""
WAKES = "\nfar.send(b'x'); time.sleep(0.2)"  # a file's owner would be signalled for this


def number(name: str) -> int:
    import pyseccomp

    return int(pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name))


# Programs that act on the victim: means, and the program. All are refused, with and without Landlock.
ACTS = {
    "kill": "attempt(os.kill, VICTIM, 9)",
    "kill, upper bits": "call({kill}, UPPER | VICTIM, 9)",
    "kill its group": "attempt(os.killpg, VICTIM, 9); attempt(os.kill, -1, 9); attempt(os.kill, 0, 9)",
    "tgkill": "call({tgkill}, VICTIM, VICTIM, 9); call({tgkill}, UPPER | VICTIM, VICTIM, 9)",
    "tkill": "call({tkill}, VICTIM, 9)",
    "sigqueue": (
        "call({rt_sigqueueinfo}, VICTIM, 9, buffer)\ncall({rt_tgsigqueueinfo}, VICTIM, VICTIM, 9, buffer)"
    ),
    "pidfd": "call({pidfd_open}, VICTIM, 0); call({pidfd_send_signal}, 0, 9, 0, 0)",
    "owner of a socket, by ioctl": (
        "attempt(fcntl.ioctl, near, 0x8901, word); attempt(fcntl.ioctl, near, 0x8902, word)\n"
        "attempt(fcntl.ioctl, near, 0x5452, struct.pack('i', 1))" + WAKES
    ),
    "owner of a socket, by ioctl, upper bits": (
        "call({ioctl}, near.fileno(), UPPER | 0x8901, buffer)\n"
        "call({ioctl}, near.fileno(), UPPER | 0x5452, buffer)" + WAKES
    ),
    "owner of a socket, by fcntl": (
        "attempt(fcntl.fcntl, near, fcntl.F_SETOWN, VICTIM); attempt(fcntl.fcntl, near, fcntl.F_SETSIG, 9)\n"
        "attempt(fcntl.fcntl, near, fcntl.F_SETFL, os.O_ASYNC)" + WAKES
    ),
    "owner of a socket, by fcntl, upper bits": (
        "call({fcntl}, near.fileno(), UPPER | 8, VICTIM); call({fcntl}, near.fileno(), UPPER | 10, 9)\n"
        "call({fcntl}, near.fileno(), UPPER | 4, 0x2000); call({fcntl}, near.fileno(), UPPER | 15, buffer)"
        + WAKES
    ),
    "owner of a file, by a lease or a watch": (
        "attempt(fcntl.fcntl, os.open('.', os.O_RDONLY), 1026, 1)\n"
        "attempt(fcntl.fcntl, os.open('.', os.O_RDONLY), 1024, 0)"
    ),
    "terminal": "attempt(fcntl.ioctl, near, 0x5410, word); attempt(fcntl.ioctl, near, 0x5412, b'x')",
    "a timer's thread": (
        "event = struct.pack('PiiiI', 0, 9, 4, VICTIM, 0) + bytes(40)\n"
        "call({timer_create}, 1, ctypes.create_string_buffer(event), buffer)"
    ),
    "message queue": "call({mq_open}, b'q', os.O_CREAT | os.O_RDWR, 0o600, 0); call({mq_notify}, 3, buffer)",
    "ptrace": "call({ptrace}, 16, VICTIM, 0, 0); call({ptrace}, 0x4206, VICTIM, 0, 0)",
    "memory, by a call": "call({process_vm_writev}, VICTIM, buffer, 1, buffer, 1, 0)",
    "memory, by a file": "attempt(open, f'/proc/{{VICTIM}}/mem', 'r+b')",
    "limits": "call({prlimit64}, VICTIM, 0, struct.pack('QQ', 1, 1), 0)",
    "priority": "attempt(os.setpriority, 0, VICTIM, 19); attempt(os.sched_setaffinity, VICTIM, [0])",
    "scheduler": "attempt(os.sched_setscheduler, VICTIM, os.SCHED_IDLE, os.sched_param(0))",
    "its descriptors": "call({pidfd_getfd}, 0, 0, 0); call({kcmp}, VICTIM, VICTIM, 0, 0, 0)",
    "oom score": "attempt(open, f'/proc/{{VICTIM}}/oom_score_adj', 'w')",
    "sockets": "attempt(socket.socket, socket.AF_UNIX); attempt(socket.socket, socket.AF_INET)",
    "a message to an address": "call({sendto}, near.fileno(), b'x', 1, 0, b'\\x01\\x00\\x00ray', 6)",
    "descriptors to another process": "call({sendmsg}, near.fileno(), buffer, 0)",
    "io_uring": "call({io_uring_setup}, 4, buffer); call({io_uring_enter}, 0, 1, 0, 0, 0)",
    "a process": "attempt(os.fork); call({clone}, 17, 0, 0, 0, 0); call({clone3}, buffer, 88); call({vfork})",
    "a program": "attempt(os.execv, '/bin/true', ['true']); call({execveat}, -100, b'/bin/true', 0, 0, 0)",
    "shared memory": "call({shmget}, 1, 4096, 0o1600); call({shmat}, 0, 0, 0); call({memfd_create}, b'm', 0)",
    "a namespace": "call({unshare}, 0x10000000); call({setns}, 0, 0)",
    "life beyond the server": "call({prctl}, 1, 0); call({prctl}, UPPER | 1, 0); attempt(os.setsid)",
    "keys": "call({keyctl}, 0, -3, 0); call({add_key}, b'user', b'k', b'v', 1, -3)",
}


@pytest.fixture(scope="module", params=MODULES)
def work(request: pytest.FixtureRequest) -> Iterator[Confined]:
    if request.param != "without" and not landlock_version():
        pytest.skip("this kernel has no Landlock")
    yield Confined(MODULES[request.param], Limits(seconds=4.0, memory_gib=0.5))


@pytest.fixture(scope="module")
def victim() -> Iterator[psutil.Popen]:
    process = psutil.Popen(
        [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE,
        env=os.environ | {"SOME_TOKEN": "very-secret"},
        start_new_session=True,
    )
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def printed(work: Confined, code: str, victim: int = 1) -> list[str]:
    tools = TOOLS.format(victim=victim)
    ((outcome,),) = work.run([[{"code": tools + code, "stdin": ""}]])
    return [*outcome.output.split(), *([outcome.why] if outcome.why else [])]


@pytest.mark.parametrize("means", ACTS)
def test_no_means_reaches_another_process(work: Confined, victim: psutil.Popen, means: str) -> None:
    names = {word.split("}")[0] for word in ACTS[means].replace("{{", "").split("{")[1:]}
    code = ACTS[means].format(**{name: number(name) for name in names})
    before = (victim.nice(), victim.cpu_affinity(), victim.rlimit(psutil.RLIMIT_CPU))
    answers = printed(work, code, victim.pid)
    assert answers and set(answers) <= {"EPERM", "EACCES", "ENOSYS", "EINVAL"}
    time.sleep(0.05)
    assert victim.poll() is None and victim.status() != psutil.STATUS_STOPPED
    assert (victim.nice(), victim.cpu_affinity(), victim.rlimit(psutil.RLIMIT_CPU)) == before


def test_no_means_empties_another_file(work: Confined, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_text("weights")
    modes = ("O_RDONLY", "O_WRONLY", "O_RDWR", "O_ACCMODE")
    ways = [f"attempt(os.open, {str(checkpoint)!r}, os.O_TRUNC | os.{mode})" for mode in modes]
    ways.append(f"attempt(os.truncate, {str(checkpoint)!r}, 0)")
    how = "ctypes.create_string_buffer(struct.pack('QQQ', os.O_TRUNC, 0, 0))"
    ways.append(f"call({number('openat2')}, -100, {bytes(checkpoint)!r}, {how}, 24)")
    answers = printed(work, "\n".join(ways))
    assert len(answers) == len(ways) and set(answers) <= {"EPERM", "EACCES"}
    assert checkpoint.read_text() == "weights"


def test_its_own_server_is_another_process_too(work: Confined) -> None:
    code = (
        "VICTIM = os.getppid(); word = struct.pack('i', VICTIM)\n"
        "attempt(fcntl.ioctl, near, 0x8901, word)\n"
        f"call({number('fcntl')}, near.fileno(), UPPER | 8, VICTIM)\n"
        "attempt(os.kill, VICTIM, 9)" + WAKES
    )
    assert printed(work, code) == ["EPERM"] * 3
    assert printed(work, "print(3)") == ["3"]


def test_a_program_has_no_descriptor_but_its_own(work: Confined) -> None:
    code = (
        "for n in range(64):\n    path = f'/proc/self/fd/{n}'\n"
        "    if os.path.lexists(path): print(os.readlink(path))"
    )
    names = [place.partition(":")[0].rpartition("/")[2] for place in printed(work, code)]
    kinds = [name.partition("-")[0] for name in names]
    # Its input, which has no name; its output; errors; nothing in place of the pipe; the pair of sockets.
    assert [kind for kind in kinds if kind != "(deleted)"] == [
        "input",
        "pipe",
        "null",
        "null",
        "socket",
        "socket",
    ]


def test_what_it_may_still_do(work: Confined) -> None:
    """Calls of ordinary programs: each is one of the requests and commands that are allowed."""
    code = (
        "attempt(near.setblocking, False); attempt(near.set_inheritable, True); attempt(os.dup, 1)\n"
        "attempt(fcntl.fcntl, near, fcntl.F_GETFL); print(os.isatty(1)); attempt(os.kill, os.getpid(), 0)\n"
        "attempt(fcntl.lockf, 0, fcntl.LOCK_EX); attempt(open, os.__file__)"
    )
    assert printed(work, code) == ["did"] * 4 + ["False"] + ["did"] * 3


@pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
def test_it_reads_python_and_its_own_folder_and_nothing_else(tmp_path: Path, victim: psutil.Popen) -> None:
    work = Confined(CODE, Limits())
    (tmp_path / "answers.jsonl").write_text('{"output": "42"}')
    shared = Path(f"/dev/shm/whetstone-test-{os.getpid()}")
    shared.write_text("weights")
    places = {
        tmp_path / "answers.jsonl": "EACCES",
        Path(__file__): "EACCES",  # a file of a project's folder
        shared: "EACCES",
        Path(f"/proc/{victim.pid}/environ"): "EACCES",
        Path(f"/proc/{victim.pid}/mem"): "EACCES",
        Path("/etc/passwd"): "EACCES",
        Path(os.__file__): "did",
        Path("/dev/urandom"): "did",
        Path("/proc/self/status"): "did",
    }
    try:
        code = "".join(f"attempt(open, {str(path)!r}, 'rb')\n" for path in places)
        assert printed(work, code) == list(places.values())
        folders = "".join(f"attempt(os.listdir, {str(path.parent)!r})\n" for path in (*places,)[:3])
        assert printed(work, folders) == ["EACCES"] * 3
    finally:
        shared.unlink()
    ordinary = (
        "import numpy, zoneinfo, decimal, sqlite3; print(numpy.ones(3).sum(), zoneinfo.ZoneInfo('UTC'))"
    )
    assert printed(work, ordinary) == ["3.0", "UTC"]


@pytest.mark.parametrize("allowed", [REQUESTS, COMMANDS, (0,), (2**32 - 1, 0, 1)])
def test_all_other_numbers_are_refused(allowed: tuple[int, ...]) -> None:
    pairs = list(all_others(allowed))
    near = {number ^ (1 << bit) for number in allowed for bit in range(32)} | set(range(2000)) | set(allowed)
    refused = {number for number in near if any(number & mask == value for mask, value in pairs)}
    assert refused == near - set(allowed)
    # The kernel reads 32 bits: what stands above them changes nothing.
    assert not any((UPPER | number) & mask == value for number in allowed for mask, value in pairs)
