"""The process behind `reward_servers.isolation.confined`: it forks a process of its own for each sample.

    line of jobs ──▶ fork ──▶ confine ──▶ perform(payload) ──▶ pipe ──▶ line of outcomes
                      │ too long, too much: killed, and only that sample ends

It has one thread and no modules but those of the work, so that a fork is safe and takes milliseconds.
"""

import contextlib
import importlib
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from reward_servers.isolation.confinement import MIB, confine, prepare

Perform = Callable[[Any], Any]
Outcome = list[str]  # what was said, and why it ended: "" is well
POLL_S = 0.05
QUICK_S = 1.0  # of CPU time, in the first round
PATIENCE = 3.0  # seconds by the clock for each of CPU time: the machine may be busy
OUTPUT = 4 * MIB  # bytes that a sample may write to its pipe
THREADS, FILES = 64, 1000
RESULT = 3  # the file descriptor of the pipe, in the fork
TIME, UNCONFINED = "time", "unconfined"
CONFINED = b"+"  # the first byte that a process says, before its sample can say any


@dataclass(frozen=True)
class Bounds:
    """Limits of one sample: `seconds` of CPU time for all its runs together; `together` share a process."""

    seconds: float
    memory_gib: float
    file_mib: float
    parallel: int
    together: int = 1


@dataclass
class Job:
    """A sample: what to run, one after the other, each in a process of its own."""

    place: int
    payloads: list[Any]
    left_s: float
    outcomes: list[Outcome] = field(default_factory=list)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    parent = os.getppid()
    asked = json.loads(sys.stdin.readline())
    try:
        module = importlib.import_module(asked["module"])
        getattr(module, "prepare", list)()
    except Exception as error:
        _say({"failed": f"{type(error).__name__}: {error}"}, answers)
        return
    bounds = Bounds(**asked["bounds"])
    prepare()
    _say({"ready": True}, answers)
    for line in sys.stdin:
        said = json.loads(line)
        until = time.monotonic() + said["seconds"]
        found = outcomes(said["jobs"], module.perform, bounds, until, lambda: os.getppid() == parent)
        _say({"outcomes": found}, answers)


def outcomes(
    jobs: Sequence[list[Any]], perform: Perform, bounds: Bounds, until: float, go_on: Callable[[], bool]
) -> list[list[Outcome] | None]:
    """Return the outcomes of each job's runs; None for a job that was not finished in time.

    A job gets a second at first, so that quick jobs never wait for slow ones, and then its whole time.
    Before that, jobs may share a process; where it ends badly, each of them gets its own.
    """
    found: list[list[Outcome] | None] = [None] * len(jobs)
    if bounds.together > 1:
        for place, value in _shared(jobs, perform, bounds, until, go_on).items():
            found[place] = [[json.dumps(value), ""]]
    todo = [place for place, told in enumerate(found) if told is None]
    for seconds in sorted({min(QUICK_S, bounds.seconds), bounds.seconds}):
        waiting = [Job(place, jobs[place], seconds) for place in todo]
        for job in Round(perform, bounds, until, go_on).finished(waiting):
            found[job.place] = job.outcomes
        todo = [place for place in todo if (told := found[place]) and told[-1][1] == TIME]
    return found


def _shared(
    jobs: Sequence[list[Any]], perform: Perform, bounds: Bounds, until: float, go_on: Callable[[], bool]
) -> dict[int, Any]:
    """Return the values of the jobs, by place, whose shared process ended well; each job has one run."""
    starts = range(0, len(jobs), bounds.together)
    parts = [[payload for (payload,) in jobs[start : start + bounds.together]] for start in starts]
    waiting = [Job(start, [part], QUICK_S) for start, part in zip(starts, parts, strict=True)]
    found: dict[int, Any] = {}
    round_ = Round(lambda part: [perform(payload) for payload in part], bounds, until, go_on)
    for job in round_.finished(waiting):
        ((said, why),) = job.outcomes
        if not why:
            found |= enumerate(json.loads(said), start=job.place)
    return found


@dataclass
class Run:
    """A process that is under way."""

    job: Job
    pid: int
    pidfd: int
    pipe: int
    home: str
    deadline: float
    said: bytearray = field(default_factory=bytearray)
    why: str = ""

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while some := os.read(self.pipe, 1 << 16):
                self.said += some
                if len(self.said) > OUTPUT:
                    self.kill("output")
                    break

    def kill(self, why: str) -> None:
        self.why = self.why or why
        os.kill(self.pid, signal.SIGKILL)

    def watch(self, file_mib: float) -> None:
        """End the process if it has taken too long, too many threads or too many files."""
        if time.monotonic() > self.deadline:
            self.kill(TIME)
        elif _num_threads(self.pid) > THREADS:
            self.kill("threads")
        elif _is_over(self.home, file_mib * MIB):
            self.kill("files")

    def outcome(self) -> tuple[Outcome, float]:
        """Return the outcome of a process that has ended, and its CPU seconds."""
        self.read()
        _, status, usage = os.wait4(self.pid, 0)
        os.close(self.pidfd)
        os.close(self.pipe)
        shutil.rmtree(self.home, ignore_errors=True)
        code = os.waitstatus_to_exitcode(status)
        if code < 0 and not self.why:
            self.why = TIME if -code == signal.SIGXCPU else f"signal {-code}"
        if not self.said.startswith(CONFINED) and self.why != TIME:
            return [self.said.decode(errors="replace"), UNCONFINED], 0.0
        why = self.why or (f"exit code {code}" if code else "")
        used_s = usage.ru_utime + usage.ru_stime
        if code == -signal.SIGKILL and used_s >= self.job.left_s:
            why = TIME
        return [self.said[1:].decode("utf-8", errors="replace"), why], used_s


class Round:
    """One pass over jobs, at most `parallel` at a time."""

    def __init__(self, perform: Perform, bounds: Bounds, until: float, go_on: Callable[[], bool]) -> None:
        self._perform, self._bounds, self._until, self._go_on = perform, bounds, until, go_on
        self._running: dict[int, Run] = {}  # by process
        self._selector = selectors.DefaultSelector()

    def finished(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs that ended; those that the time did not suffice for are left out."""
        waiting, done = deque(jobs), list[Job]()
        while (waiting or self._running) and time.monotonic() < self._until and self._go_on():
            while waiting and len(self._running) < self._bounds.parallel:
                self._start(waiting.popleft())
            for key, _ in self._selector.select(POLL_S):
                run: Run = key.data
                if run.pid not in self._running:  # its end is an earlier event of this turn
                    continue
                if key.fd == run.pipe:
                    run.read()
                else:
                    done += self._end(run)
            for run in self._running.values():
                run.watch(self._bounds.file_mib)
        for run in list(self._running.values()):
            run.kill(TIME)
            self._forget(run).outcome()
        self._selector.close()  # or it would close a number that a fork uses otherwise
        return done

    def _start(self, job: Job) -> None:
        home = tempfile.mkdtemp(dir=".")
        pipe, end = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_the_fork(self._perform, job, end, home, self._bounds)
        os.close(end)
        os.set_blocking(pipe, False)
        deadline = time.monotonic() + PATIENCE * job.left_s
        run = Run(job, pid, os.pidfd_open(pid), pipe, home, deadline)
        self._running[pid] = run
        self._selector.register(run.pidfd, selectors.EVENT_READ, run)
        self._selector.register(pipe, selectors.EVENT_READ, run)

    def _end(self, run: Run) -> list[Job]:
        """Note how a run ended, and start the job's next; return the job if it was the last."""
        outcome, used_s = self._forget(run).outcome()
        job = run.job
        job.outcomes.append(outcome)
        job.left_s -= used_s
        if outcome[1] != TIME and job.left_s > 0 and len(job.outcomes) < len(job.payloads):
            self._start(job)
            return []
        if outcome[1] != TIME and len(job.outcomes) < len(job.payloads):
            job.outcomes.append(["", TIME])
        return [job]

    def _forget(self, run: Run) -> Run:
        del self._running[run.pid]
        for number in (run.pidfd, run.pipe):
            with contextlib.suppress(KeyError):
                self._selector.unregister(number)
        return run


def _be_the_fork(perform: Perform, job: Job, end: int, home: str, bounds: Bounds) -> None:
    """Do the work in a confined process, and end it."""
    os.dup2(end, RESULT)
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.closerange(RESULT + 1, 1 << 16)
        os.chdir(home)
        _open_input()
        confine(".", job.left_s, bounds.memory_gib, bounds.file_mib)
        os.write(RESULT, CONFINED)
    except BaseException as error:
        os.write(RESULT, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    code = 1
    try:
        said = perform(job.payloads[len(job.outcomes)])
        os.write(RESULT, said if isinstance(said, bytes) else json.dumps(said).encode())
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:  # whatever a sample raises ends that sample
        os._exit(code & 0xFF)


def _open_input() -> None:
    """Make standard input an empty file without a name, which the work may fill: later it may open none."""
    file = os.open("input", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink("input")
    os.dup2(file, 0)
    os.close(file)


def _num_threads(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/task").st_nlink - 2
    except OSError:  # it has ended
        return 0


def _is_over(home: str, most: float) -> bool:
    """Return whether the folder holds more bytes, or more files, than it may."""
    size = count = 0
    for folder, folders, files in os.walk(home):
        count += len(folders) + len(files)
        for name in files:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(folder, name)).st_blocks * 512
        if size > most or count > FILES:
            return True
    return False


def _say(message: dict[str, Any], answers: Any) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
