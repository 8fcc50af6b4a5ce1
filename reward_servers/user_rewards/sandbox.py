"""A sandbox for a user's reward: a separate process with limits of memory, time and files, without secrets.

    replica ── {"samples": […]} ──▶ child: RewardServer(part).score
            ◀── {"answers": […]} ──
            ── {"trial": […]} ────▶ child: RewardServer(part).try_out
            ◀── {"refusal": …} ────
            ── {"texts": […]} ────▶ child: RewardServer(part).answers
            ◀── {"found": […]} ────

Both sides send lines of JSON, so nothing from the child is executed here. The sandbox is no jail, because the
code runs as the same user and reaches the network.
"""

import contextlib
import fcntl
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from contracts.errors import InputError, RewardError
from contracts.objects import packed_of
from contracts.processes import working_folder
from contracts.scores import Answer, Sample
from contracts.secrets.redaction import redact
from reward_servers.settings import Part, Sandbox, ServerSettings
from reward_servers.user_rewards.grades import grade_of
from reward_servers.user_rewards.trial import Trial, Verdict

# Python, its libraries and a GPU from Ray need these variables; none of them holds a token or password.
KEPT = (
    *("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"),
    *("CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE"),
)
OBJECT = re.compile(r'"(object:\w+@\w+)"')
EXCERPT = 200  # characters of a child's last output in a message
END_S = 1.0  # time for a process to end that has closed its pipe

Row = dict[str, Any]
Kind = Literal["reward", "metric"]


class SandboxedServer:
    """A `RewardServer` in a child process, which is replaced if it dies, hangs or exceeds its limits.

    Example: `SandboxedServer(Part(name="length"), Sandbox(seconds=5)).score([Sample(text="a b")])
    == [(2.0, None)]`

    Raises:
        InputError, RewardError: like `RewardServer`, or the child can't load within its limits.
    """

    is_coroutine, busy_s = False, 0.0  # the child runs coroutines, a batch at a time
    ends_by_itself = False

    def __init__(self, part: Part, limits: Sandbox, server: ServerSettings | None = None) -> None:
        self._part, self._limits, self._server = part, limits, server
        self._child: Child | None = self._started()
        self.is_deterministic = self._child.is_deterministic
        self.scores_groups = self._child.scores_groups
        self.reads_groups = False
        self._turn = threading.RLock()  # the child answers one line at a time
        self._counts: dict[str, float] = {}

    def _started(self) -> "Child":
        return Child("reward", self._part, self._limits, None, self._server)

    def take_counts(self) -> dict[str, float]:
        """Return the reward's counts since the last call."""
        counts, self._counts = self._counts, {}
        return counts

    def try_out(self, trial: Trial) -> Verdict:
        """Try the reward like `RewardServer`; refuse a reward that ends the child."""
        self._child = self._child or self._started()
        try:
            return self._child.try_out(trial, self._limits.seconds)
        except RewardError as error:
            self.close()
            return Verdict(refusal=f"reward {self._part.label}: {error}")

    def score(self, samples: Sequence[Sample]) -> list[Answer]:
        """Return an answer for each sample, in order.

        If a batch ends the child, each text is scored alone. Both tries together take at most twice
        `seconds`, besides the starts of new children.
        """
        answers: list[Answer] = [(None, None)] * len(samples)
        rows: dict[int, Row] = {}
        for place, sample in enumerate(samples):
            try:
                rows[place] = row_of(sample)
            except RewardError as error:
                answers[place] = self._refusal(sample, error)
        if len(rows) > 1:
            try:
                scored, _ = self._ask(list(rows.values()), self._limits.seconds)
            except _Broke as error:
                if self.scores_groups:  # a text can't be scored without its group
                    return [self._refusal(sample, error) for sample in samples]
            else:
                for place, answer in zip(rows, scored, strict=True):
                    answers[place] = answer
                return answers
        left_s = self._limits.seconds
        for place, row in rows.items():
            try:  # a hanging text leaves half of the remaining time to the later ones
                ((answers[place],), took_s) = self._ask([row], left_s / 2 if len(rows) > 1 else left_s)
            except _Broke as error:
                took_s = error.took_s
                answers[place] = self._refusal(samples[place], error)
            left_s -= took_s
        return answers

    def answers(self, texts: Sequence[str]) -> list[str | None] | None:
        """Return the answer in each text; None if the reward finds no answers.

        If a batch ends the child, each half is tried again, so that one bad text costs one answer.
        """
        with self._turn:
            self._child = self._child or self._started()
            try:
                return self._child.answers(texts, self._limits.seconds)
            except RewardError:
                self.close()
            if len(texts) == 1:
                return [None]
            half = len(texts) // 2
            first, second = self.answers(texts[:half]), self.answers(texts[half:])
            return None if first is None or second is None else [*first, *second]

    def _ask(self, rows: Sequence[Row], seconds: float) -> tuple[list[Answer], float]:
        """Return answers and their seconds, without a child's start."""
        with self._turn:
            began = time.monotonic()
            try:
                self._child = self._child or self._started()
                began = time.monotonic()
                answers = self._child.score(rows, seconds)
                self.reads_groups = self.reads_groups or self._child.reads_groups
                for name, count in self._child.counts.items():
                    self._counts[name] = self._counts.get(name, 0.0) + count
                return answers, time.monotonic() - began
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
    """A child that ended, or was killed."""

    def __init__(self, reason: str, took_s: float) -> None:
        super().__init__(reason)
        self.took_s = took_s


class Child:
    """The child process, and the lines to and from it.

    Args:
        limits: None: no limits, and this process's environment and folder, but no GPU.
        start_s: seconds to load the grader; None: `start_seconds` of the limits.
    """

    _setting = ""  # the option of its time, for messages

    def __init__(
        self,
        kind: Kind,
        part: Part,
        limits: Sandbox | None,
        start_s: float | None = None,
        server: ServerSettings | None = None,
    ) -> None:
        self.is_deterministic = self.reads_groups = self.scores_groups = False
        self.counts: dict[str, float] = {}
        self._start("reward_servers.user_rewards.sandbox_child", has_home=limits is not None)
        try:
            self._load(kind, part, limits, start_s, server)
        except BaseException:
            self.end()
            raise
        self._setting = "sandbox.seconds" if limits else ""

    def _start(self, module: str, *, has_home: bool, more: Mapping[str, str] | None = None) -> None:
        """Start a process that runs `module`, with `more` variables in its environment."""
        self._home = tempfile.TemporaryDirectory(prefix="reward-", ignore_cleanup_errors=True)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed in end)
        # In append mode it can be emptied: the limit is on files, not on the total output.
        fcntl.fcntl(self._said, fcntl.F_SETFL, fcntl.fcntl(self._said, fcntl.F_GETFL) | os.O_APPEND)
        home = self._home.name if has_home else None
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            cwd=home,
            start_new_session=True,  # so that the processes it starts end with it
            env=_environment(home) | dict(more or {}),
        )
        assert self._process.stdout is not None
        self._received = b""
        os.set_blocking(self._process.stdout.fileno(), False)

    def _load(
        self,
        kind: Kind,
        part: Part,
        limits: Sandbox | None,
        start_s: float | None,
        server: ServerSettings | None,
    ) -> None:
        limits_sent = None if limits is None else limits.model_dump()
        server_sent = None if server is None else server.model_dump(exclude_unset=True)
        part_sent = part.model_dump()
        reply = self._exchange(
            {
                "kind": kind,
                "part": part_sent,
                "limits": limits_sent,
                "server": server_sent,
                "objects": _objects_of(part_sent),
            },
            start_s or (limits or Sandbox()).start_seconds,
        )
        if "refused" in reply:
            raise InputError(redact(str(reply["refused"])))
        if "failed" in reply:
            raise RewardError(redact(str(reply["failed"])))
        self.is_deterministic = reply.get("is_deterministic") is True
        self.scores_groups = reply.get("scores_groups") is True

    def try_out(self, trial: Trial, seconds: float) -> Verdict:
        """Call the grader on the trial's samples.

        Raises:
            RewardError: the child gave no verdict in time, or ended.
        """
        rows = [row_of(sample) for sample in trial.samples]
        reply = self._exchange({"trial": rows, "are_real": trial.are_real}, seconds)
        return Verdict(*(str(reply.get(key, "")) for key in ("refusal", "warning", "raised")))

    def score(self, rows: Sequence[Row], seconds: float) -> list[Answer]:
        reply = self._exchange({"samples": rows}, seconds)
        answers, self.reads_groups = reply.get("answers"), reply.get("reads_groups") is True
        counts = reply.get("counts")
        self.counts = dict(counts) if isinstance(counts, dict) else {}
        self._said.truncate(0)
        if not isinstance(answers, list) or len(answers) != len(rows):
            raise RewardError(f"its process gave {answers!r:.200}; expected a list of {len(rows)} answers")
        return [_checked(answer) for answer in answers]

    def answers(self, texts: Sequence[str], seconds: float) -> list[str | None] | None:
        answers = self._exchange({"texts": list(texts)}, seconds).get("found")
        if answers is None:
            return None
        if not isinstance(answers, list) or len(answers) != len(texts):
            raise RewardError(f"its process gave {answers!r:.200}; expected a list of {len(texts)} answers")
        return [None if answer is None else str(answer) for answer in answers]

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
            reply = json.loads(answer)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise RewardError(f"its process gave {answer[:EXCERPT]!r}; expected an answer as JSON")
        return reply

    def _send(self, line: bytes, deadline: float, seconds: float) -> None:
        """Send a line in pieces, so that a child that does not read can't block this process."""
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
                more = f"; raise {self._setting}" if self._setting else ""
                raise RewardError(f"its process gave no answer within {seconds:g} s and was ended{more}")

    def _why_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._kill()
        code = self._process.wait()
        self._said.seek(0)
        last = redact(self._said.read().decode(errors="replace").strip())[-EXCERPT:]
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


def _objects_of(part: Any) -> dict[str, str]:
    """Return the Python objects at a part's addresses, in its name and options."""
    addresses = OBJECT.findall(json.dumps(part, ensure_ascii=False, default=str))
    blobs = [blob for address in addresses for blob in packed_of(address).items()]
    return {name: b64encode(blob).decode() for name, blob in blobs}


def _environment(home: str | None) -> dict[str, str]:
    """Return the child's environment: a safe part of this one, or all except the GPUs if `home` is None."""
    # The child must find the same classes as this process.
    path = {"PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path)}
    path |= working_folder.variable()
    if home is None:
        return os.environ | path | {"CUDA_VISIBLE_DEVICES": ""}
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return kept | path | {"HF_HUB_CACHE": hub_cache(), "HOME": home, "TMPDIR": home}


def hub_cache() -> str:
    """Return the folder of the hub's models; its parent `HF_HOME` also holds the token and is not shared."""
    home = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    return os.environ.get("HF_HUB_CACHE", os.path.join(home, "hub"))


def row_of(sample: Sample) -> Row:
    """Return the sample as JSON data.

    Raises:
        RewardError: its meta data doesn't fit JSON.
    """
    fields = ("text", "prompt", "references", "group", "num_tokens", "opened", "turns")
    row = {name: getattr(sample, name) for name in fields} | {"meta": dict(sample.meta)}
    try:
        json.dumps(row, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RewardError(f"a sandbox's samples have to be JSON, and this one is not: {error}") from None
    return row


def _checked(answer: Any) -> Answer:
    """Return the child's answer if it has the right shape."""
    match answer:
        case [float() | int() | {"score": _} as score, None]:
            return grade_of(score, "its process"), None
        case [None, None]:
            return None, None
        case [None, str() as reason]:
            return None, redact(reason)
    raise RewardError(f"its process gave {answer!r:.200}; expected a score or a reason")
