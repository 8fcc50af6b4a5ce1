"""The process behind `reward_servers.isolation.confined`, which forks a process for each sample.

    line of jobs ──▶ fork ──▶ confine ──▶ perform(payload) ──▶ pipe ──▶ line of outcomes
                      │ too long, too much: killed, and only that sample ends

Each fork reads its payload from a file, so no fork holds another's payload in memory.
The server has one thread and only the work's modules, so a fork is safe and takes milliseconds.
"""

import contextlib
import fcntl
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from reward_servers.isolation.confinement import MIB, close_memory, confine, prepare

Perform = Callable[[Any], Any]
Span = tuple[int, int]  # a payload's begin and length
Outcome = list[str]  # the output, and a fault that ended the run, or ""
POLL_S = 0.05
QUICK_S = 1.0  # CPU time in the first round
PATIENCE = 3.0  # wall-clock seconds per second of CPU time, because the machine may be busy
OUTPUT = 4 * MIB  # bytes that a sample may write to its pipe
THREADS, FILES = 64, 1000
RESULT, LINE = 3, 4  # file descriptors in a fork: the pipe, and the line to a partner
TIME, UNCONFINED = "time", "unconfined"
HIGH = 100  # above the numbers that a fork uses
CONFINED = b"+"  # the first byte in the pipe, before a sample can write there


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
    runs: list[list[Span]]  # a run has one payload, or two for two processes
    left_s: float
    outcomes: list[Outcome] = field(default_factory=list)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    parent = os.getppid()
    settings = json.loads(sys.stdin.readline())
    try:
        module = importlib.import_module(settings["module"])
        getattr(module, "prepare", list)()
    except Exception as error:
        _say({"failed": f"{type(error).__name__}: {error}"}, answers)
        return
    bounds = Bounds(**settings["bounds"])
    prepare()
    close_memory()
    _say({"ready": True}, answers)
    for line in sys.stdin:
        request = json.loads(line)
        until = time.monotonic() + request["seconds"]
        work = Work(module, request["payloads"])
        results = outcomes(request["jobs"], work, bounds, until, lambda: os.getppid() == parent)
        os.close(work.file)
        _say({"outcomes": results}, answers)


class Work:
    """Work of the forks, and the nameless file of their payloads."""

    def __init__(self, module: Any, path: str) -> None:
        self._module = module
        self.file = os.open(path, os.O_RDONLY)
        os.unlink(path)

    def of(self, spans: Sequence[Span], place: int) -> Callable[[], Any]:
        """Return the work of a run's fork: the only, the asking or the serving one."""
        payload = self.payload(spans[place])
        if len(spans) == 1:
            return lambda: self._module.perform(payload)
        return lambda: (self._module.ask, self._module.serve)[place](payload, LINE)

    def of_all(self, spans: Sequence[Span], _: int) -> Callable[[], Any]:
        """Return the work of a fork that jobs share."""
        payloads = [self.payload(span) for span in spans]
        return lambda: [self._module.perform(payload) for payload in payloads]

    def payload(self, span: Span) -> Any:
        return json.loads(os.pread(self.file, span[1], span[0]))


WorkOf = Callable[[Sequence[Span], int], Callable[[], Any]]


def outcomes(
    jobs: Sequence[list[list[Span]]], work: Work, bounds: Bounds, until: float, go_on: Callable[[], bool]
) -> list[list[Outcome] | None]:
    """Return the outcomes of each job's runs; None for an unfinished job.

    A job first gets a second, so that quick jobs never wait for slow ones, and then its whole time. Before
    that, jobs may share a process; if it ends badly, each job gets its own.
    """
    results: list[list[Outcome] | None] = [None] * len(jobs)
    if bounds.together > 1:
        for place, value in _shared(jobs, work, bounds, until, go_on).items():
            results[place] = [[json.dumps(value), ""]]
    todo = [place for place, runs in enumerate(results) if runs is None]
    for seconds in sorted({min(QUICK_S, bounds.seconds), bounds.seconds}):
        waiting = [Job(place, jobs[place], seconds) for place in todo]
        for job in Round(work.of, bounds, until, go_on).finished(waiting):
            results[job.place] = job.outcomes
        todo = [place for place in todo if (runs := results[place]) and runs[-1][1] == TIME]
    return results


def _shared(
    jobs: Sequence[list[list[Span]]], work: Work, bounds: Bounds, until: float, go_on: Callable[[], bool]
) -> dict[int, Any]:
    """Return, by place, the values of jobs whose shared process ended well; each job has one run."""
    starts = range(0, len(jobs), bounds.together)
    parts = [[span for ((span,),) in jobs[start : start + bounds.together]] for start in starts]
    waiting = [Job(start, [part], QUICK_S) for start, part in zip(starts, parts, strict=True)]
    values: dict[int, Any] = {}
    round_ = Round(work.of_all, bounds, until, go_on, bounds.together)
    for job in round_.finished(waiting):
        ((output, why),) = job.outcomes
        if not why:
            values |= enumerate(json.loads(output), start=job.place)
    return values


@dataclass
class Member:
    """A process of a run."""

    pid: int
    pidfd: int
    pipe: int
    output: bytearray = field(default_factory=bytearray)

    def read(self) -> bool:
        """Read the available output; return whether more may come."""
        with contextlib.suppress(BlockingIOError):
            while some := os.read(self.pipe, 1 << 16):
                self.output += some
                if len(self.output) > OUTPUT:
                    return True
            return False
        return True

    def end(self) -> tuple[int, float]:
        """Return an ended or killed process's exit code and CPU seconds."""
        self.read()
        _, status, usage = os.wait4(self.pid, 0)
        os.close(self.pidfd)
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


@dataclass
class Run:
    """One running process, or two, of which the first asks the other."""

    job: Job
    members: list[Member]
    home: str
    deadline: float
    why: str = ""

    def kill(self, why: str) -> None:
        self.why = self.why or why
        for member in self.members:
            os.kill(member.pid, signal.SIGKILL)

    def watch(self, file_mib: float) -> None:
        """End the run if it has taken too long, too many threads or too many files."""
        if time.monotonic() > self.deadline:
            self.kill(TIME)
        elif any(_num_threads(member.pid) > THREADS for member in self.members):
            self.kill("threads")
        elif _is_over(self.home, file_mib * MIB):
            self.kill("files")

    def outcome(self) -> tuple[Outcome, float]:
        """Return the outcome of a run whose first process has ended, and its CPU seconds."""
        first, *partners = self.members
        for partner in partners:
            os.kill(partner.pid, signal.SIGKILL)
        (code, used_s), *others = (member.end() for member in self.members)
        shutil.rmtree(self.home, ignore_errors=True)
        if code < 0 and not self.why:
            self.why = TIME if -code == signal.SIGXCPU else f"signal {-code}"
        if not first.output.startswith(CONFINED) and self.why != TIME:
            return [first.output.decode(errors="replace"), UNCONFINED], 0.0
        for partner in partners:
            if partner.output and not partner.output.startswith(CONFINED):
                return [partner.output.decode(errors="replace"), UNCONFINED], 0.0
        why = self.why or (f"exit code {code}" if code else "")
        if code == -signal.SIGKILL and used_s >= self.job.left_s:
            why = TIME
        if any(one == -signal.SIGXCPU or spent >= self.job.left_s for one, spent in others):
            why = TIME
        return [first.output[1:].decode("utf-8", errors="replace"), why], used_s


class Round:
    """One pass over jobs, at most `parallel` at a time."""

    def __init__(
        self,
        work_of: WorkOf,
        bounds: Bounds,
        until: float,
        go_on: Callable[[], bool],
        together: int = 1,
    ) -> None:
        self._work_of, self._bounds, self._until, self._go_on = work_of, bounds, until, go_on
        self._is_for_two = together == 1
        self._running: dict[int, Run] = {}  # by the first process
        self._selector = selectors.DefaultSelector()

    def finished(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs that ended in time."""
        waiting, done = deque(jobs), list[Job]()
        while (waiting or self._running) and time.monotonic() < self._until and self._go_on():
            while waiting and len(self._running) < self._bounds.parallel:
                self._start(waiting.popleft())
            for key, _ in self._selector.select(POLL_S):
                done += self._on(key.fd, *key.data)
            for run in self._running.values():
                run.watch(self._bounds.file_mib)
        for run in list(self._running.values()):
            run.kill(TIME)
            self._forget(run).outcome()
        self._selector.close()  # or it would close a number that a fork uses otherwise
        return done

    def _start(self, job: Job) -> None:
        home = tempfile.mkdtemp(dir=".")
        spans = job.runs[len(job.outcomes)]
        ends = [end.detach() for end in socket.socketpair()] if self._is_for_two and len(spans) == 2 else []
        members = [
            self._forked(job, home, spans, place, ends[place] if ends else None)
            for place in range(len(ends) or 1)
        ]
        for end in ends:
            os.close(end)
        run = Run(job, members, home, time.monotonic() + PATIENCE * job.left_s)
        self._running[members[0].pid] = run
        for member in members:
            self._selector.register(member.pidfd, selectors.EVENT_READ, (run, member))
            self._selector.register(member.pipe, selectors.EVENT_READ, (run, member))

    def _forked(self, job: Job, home: str, spans: Sequence[Span], place: int, line: int | None) -> Member:
        pipe, end = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_the_fork(lambda: self._work_of(spans, place), job.left_s, end, line, home, self._bounds)
        os.close(end)
        os.set_blocking(pipe, False)
        return Member(pid, os.pidfd_open(pid), pipe)

    def _on(self, number: int, run: Run, member: Member) -> list[Job]:
        """Handle a run's event; return the job if it ended."""
        if run.members[0].pid not in self._running:  # its end is an earlier event of this turn
            return []
        if number == member.pipe:
            if not member.read():
                self._selector.unregister(number)
            elif len(member.output) > OUTPUT:
                run.kill("output")
            return []
        if member is run.members[0]:
            return self._end(run)
        self._selector.unregister(number)  # the first will see the line's end
        return []

    def _end(self, run: Run) -> list[Job]:
        """Note a run's end, and start the job's next run; return the job after its last."""
        outcome, used_s = self._forget(run).outcome()
        job = run.job
        job.outcomes.append(outcome)
        job.left_s -= used_s
        if outcome[1] != TIME and job.left_s > 0 and len(job.outcomes) < len(job.runs):
            self._start(job)
            return []
        if outcome[1] != TIME and len(job.outcomes) < len(job.runs):
            job.outcomes.append(["", TIME])
        return [job]

    def _forget(self, run: Run) -> Run:
        del self._running[run.members[0].pid]
        for member in run.members:
            for number in (member.pidfd, member.pipe):
                with contextlib.suppress(KeyError):
                    self._selector.unregister(number)
        return run


def _be_the_fork(
    work: Callable[[], Callable[[], Any]], cpu_s: float, end: int, line: int | None, home: str, bounds: Bounds
) -> None:
    """Do the work in a confined process, and end it."""
    try:
        perform = work()  # reads its payload, from a file that is closed then
        place = fcntl.fcntl(end, fcntl.F_DUPFD, HIGH)  # move both away from the numbers RESULT and LINE
        partner = None if line is None else fcntl.fcntl(line, fcntl.F_DUPFD, HIGH)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.dup2(place, RESULT)
        if partner is not None:
            os.dup2(partner, LINE)
        os.closerange(LINE if partner is None else LINE + 1, 1 << 16)
        os.chdir(home)
        _open_input()
        confine(".", cpu_s, bounds.memory_gib, bounds.file_mib)
        os.write(RESULT, CONFINED)
    except BaseException as error:
        os.write(RESULT, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    code = 1
    try:
        answer = perform()
        os.write(RESULT, answer if isinstance(answer, bytes) else json.dumps(answer).encode())
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:  # whatever a sample raises ends that sample
        os._exit(code & 0xFF)


def _open_input() -> None:
    """Make standard input an empty nameless file for the work to fill, because later it may open no file."""
    name = f"input-{os.getpid()}"  # two processes share the folder
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(name)
    os.dup2(file, 0)
    os.close(file)


def _num_threads(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/task").st_nlink - 2
    except OSError:  # it has ended
        return 0


def _is_over(home: str, most: float) -> bool:
    """Return whether the folder exceeds its bytes or files."""
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
