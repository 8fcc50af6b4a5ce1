"""Somebody's reward code in a process of its own, with limits: memory, seconds, files, and no secrets around.

    replica ── {"samples": […]} ──▶ child: RewardServer(part).score
            ◀── {"answers": […]} ──

A line of JSON each way: nothing that the child says is ever executed here. It is no jail: the code still runs
as the same user, and reaches the network.
"""

import contextlib
import json
import os
import selectors
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

# What Python needs to find its packages; tokens and passwords are in none of them.
KEPT = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "HF_HOME", "HF_HUB_OFFLINE")
EXCERPT = 200  # characters of what a child said last


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

    def score(self, samples: Sequence[Sample]) -> list[Answer]:
        """An answer a sample, in order; of a batch that ended the child each sample gets a turn alone."""
        if not samples:
            return []
        try:
            return self._ask(samples)
        except RewardError as error:
            if len(samples) == 1:
                return [
                    (None, f"reward {self._part.label}: {error}; the sample: {samples[0].text[:EXCERPT]!r}")
                ]
        return [answer for sample in samples for answer in self.score([sample])]

    def _ask(self, samples: Sequence[Sample]) -> list[Answer]:
        self._child = self._child or _Child(self._part, self._limits)
        try:
            return self._child.score(samples, self._limits.seconds)
        except RewardError:
            self.close()
            raise

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.end()
        self._child = None


class _Child:
    """The process, and lines to and from it."""

    def __init__(self, part: Part, limits: Sandbox) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="reward-", ignore_cleanup_errors=True)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed in end)
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        # Where this process would find a class is where the child has to.
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "reward_servers.sandbox_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            cwd=self._home.name,
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

    def score(self, samples: Sequence[Sample], seconds: float) -> list[Answer]:
        rows = [
            {"text": s.text, "prompt": s.prompt, "references": s.references, "meta": dict(s.meta)}
            for s in samples
        ]
        answers = self._exchange({"samples": rows}, seconds).get("answers")
        if not isinstance(answers, list) or len(answers) != len(samples):
            raise RewardError(f"its process gave no {len(samples)} answers, but {answers!r:.200}")
        return [_checked(answer) for answer in answers]

    def _exchange(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        try:
            line = json.dumps(message, allow_nan=False).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise RewardError(f"samples for a sandbox have to be JSON: {error}") from None
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
        code = self._process.wait()
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").strip()[-EXCERPT:]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process ended ({how}){f', saying: {last}' if last else ''}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._home.cleanup()


def _checked(answer: Any) -> Answer:
    """The child is not trusted with the shape of its answers either."""
    match answer:
        case [float() | int() as score, None]:
            return float(score), None
        case [None, str() as reason]:
            return None, reason
    raise RewardError(f"its process gave no answer, but {answer!r:.200}")
