"""Somebody's reward code in a process of its own, with limits: memory, seconds, files, and no secrets around.

    replica ── {"samples": […]} ──▶ child: RewardServer(part).score
            ◀── {"answers": […]} ──

A line of JSON each way: nothing that the child says is ever executed here. It is no jail: the code still runs
as the same user, and reaches the network.
"""

import contextlib
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.errors import InputError, RewardError
from contracts.scores import Sample
from reward_servers.server import Answer
from reward_servers.settings import Part, Sandbox

# What Python, its libraries and a GPU that Ray has given need; tokens and passwords are in none of them.
KEPT = (
    *("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"),
    *("CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE"),
)
EXCERPT = 200  # characters of what a child said last
END_S = 1.0  # a process that has closed its pipe is about to end

Row = dict[str, Any]


class SandboxedServer:
    """`RewardServer` in a child; one that dies, hangs or takes too much is ended, and another one started.

    Example: `SandboxedServer(Part(name="length"), Sandbox(seconds=5)).score([Sample(text="a b")])
    == [(2.0, None)]`

    Raises:
        InputError, RewardError: as `RewardServer` does, and where the child can't load within its limits.
    """

    def __init__(self, part: Part, limits: Sandbox) -> None:
        self._part, self._limits = part, limits
        self._child: _Child | None = _Child(part, limits)
        self.is_deterministic = self._child.is_deterministic

    def score(self, samples: Sequence[Sample]) -> list[Answer]:
        """An answer a sample, in order.

        Of a batch that ends the child each text is scored alone: all of it takes `seconds` twice at most,
        besides the starts of other children.
        """
        answers: list[Answer] = [(None, None)] * len(samples)
        rows: dict[int, Row] = {}
        for place, sample in enumerate(samples):
            try:
                rows[place] = _row(sample)
            except RewardError as error:
                answers[place] = self._refusal(sample, error)
        if len(rows) > 1:
            with contextlib.suppress(_Broke):
                found, _ = self._ask(list(rows.values()), self._limits.seconds)
                for place, answer in zip(rows, found, strict=True):
                    answers[place] = answer
                return answers
        left_s = self._limits.seconds
        for place, row in rows.items():
            try:  # one that hangs leaves as much to those behind it
                ((answers[place],), took_s) = self._ask([row], left_s / 2 if len(rows) > 1 else left_s)
            except _Broke as error:
                took_s = error.took_s
                answers[place] = self._refusal(samples[place], error)
            left_s -= took_s
        return answers

    def _ask(self, rows: Sequence[Row], seconds: float) -> tuple[list[Answer], float]:
        """Answers, and how many seconds they took; the start of a child is not counted."""
        began = time.monotonic()
        try:
            self._child = self._child or _Child(self._part, self._limits)
            began = time.monotonic()
            return self._child.score(rows, seconds), time.monotonic() - began
        except RewardError as error:
            self.close()
            raise _Broke(str(error), time.monotonic() - began) from None

    def _refusal(self, sample: Sample, error: RewardError) -> Answer:
        return None, f"reward {self._part.label}: {error}; the sample: {sample.text[:EXCERPT]!r}"

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.end()
        self._child = None


class _Broke(RewardError):
    """The child came to its end, or had to."""

    def __init__(self, reason: str, took_s: float) -> None:
        super().__init__(reason)
        self.took_s = took_s


class _Child:
    """The process, and lines to and from it."""

    def __init__(self, part: Part, limits: Sandbox) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="reward-", ignore_cleanup_errors=True)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed in end)
        # Appended to, so that it can be emptied: the limit is one of files, not of all that is ever said.
        fcntl.fcntl(self._said, fcntl.F_SETFL, fcntl.fcntl(self._said, fcntl.F_GETFL) | os.O_APPEND)
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        # Where this process would find a class is where the child has to.
        environment["HF_HUB_CACHE"] = hub_cache()
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "reward_servers.sandbox_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            cwd=self._home.name,
            start_new_session=True,  # what it starts is ended with it
            env=environment | {"HOME": self._home.name, "TMPDIR": self._home.name},
        )
        assert self._process.stdout is not None
        self._received = b""
        os.set_blocking(self._process.stdout.fileno(), False)
        try:
            self._load(part, limits)
        except BaseException:
            self.end()
            raise

    def _load(self, part: Part, limits: Sandbox) -> None:
        told = self._exchange(
            {"part": part.model_dump(), "limits": limits.model_dump()}, limits.start_seconds
        )
        if "refused" in told:
            raise InputError(str(told["refused"]))
        if "failed" in told:
            raise RewardError(str(told["failed"]))
        self.is_deterministic = told.get("is_deterministic") is True

    def score(self, rows: Sequence[Row], seconds: float) -> list[Answer]:
        answers = self._exchange({"samples": rows}, seconds).get("answers")
        self._said.truncate(0)
        if not isinstance(answers, list) or len(answers) != len(rows):
            raise RewardError(f"its process gave no {len(rows)} answers, but {answers!r:.200}")
        return [_checked(answer) for answer in answers]

    def _exchange(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        line = json.dumps(message).encode() + b"\n"
        deadline = time.monotonic() + seconds
        self._send(line, deadline, seconds)
        while b"\n" not in self._received:
            self._wait(selectors.EVENT_READ, deadline, seconds)
            assert self._process.stdout is not None
            some = self._process.stdout.read()
            if some == b"":
                raise RewardError(self._why_it_ended())
            self._received += some or b""
        answer, _, self._received = self._received.partition(b"\n")
        try:
            found = json.loads(answer)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise RewardError(f"its process said what is no answer: {answer[:EXCERPT]!r}")
        return found

    def _send(self, line: bytes, deadline: float, seconds: float) -> None:
        """In pieces: a child that does not read must not hold this process."""
        assert self._process.stdin is not None
        pipe = self._process.stdin.fileno()
        os.set_blocking(pipe, False)
        while line:
            self._wait(selectors.EVENT_WRITE, deadline, seconds)
            try:
                line = line[os.write(pipe, line) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise RewardError(self._why_it_ended()) from None

    def _wait(self, event: int, deadline: float, seconds: float) -> None:
        pipe = self._process.stdout if event == selectors.EVENT_READ else self._process.stdin
        assert pipe is not None
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, event)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise RewardError(f"its process gave no answer within {seconds:g} s and was ended")

    def _why_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._kill()
        code = self._process.wait()
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").strip()[-EXCERPT:]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process ended ({how}){f', saying: {last}' if last else ''}"

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        self._kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._home.cleanup()


def hub_cache() -> str:
    """Where models of the hub lie; beside it, in `HF_HOME`, would be its token."""
    home = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    return os.environ.get("HF_HUB_CACHE", os.path.join(home, "hub"))


def _row(sample: Sample) -> Row:
    row = {
        "text": sample.text,
        "prompt": sample.prompt,
        "references": sample.references,
        "meta": dict(sample.meta),
        "group": sample.group,
    }
    try:
        json.dumps(row, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RewardError(f"what a sandbox gets has to be JSON, and this is not: {error}") from None
    return row


def _checked(answer: Any) -> Answer:
    """The child is not trusted with the shape of its answers either."""
    match answer:
        case [float() | int() as score, None]:
            return float(score), None
        case [None, str() as reason]:
            return None, reason
    raise RewardError(f"its process gave no answer, but {answer!r:.200}")
