"""Format reasons for a missing score, and the sample, for messages."""

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import WhetstoneError
from contracts.scores import Sample
from contracts.secrets.redaction import redact

RAISED = (Exception, SystemExit)  # errors of a grader that don't end the process that serves it


OURS = Path(__file__).absolute().parents[1]
PACKAGES = ("contracts", "reward_servers", "rollout_workers", "learner", "services")
NOT_THE_USERS = (
    *(str(OURS / package) for package in PACKAGES),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)


class RaisedElsewhere(Exception):
    """Another process's exception, with its traceback as message."""


def reason_of(error: BaseException) -> str:
    """Return the exception's text, and the user's line that raised it."""
    if isinstance(error, WhetstoneError):
        return redact(str(error))
    frames = _users_frames(error)
    place = f" ({_place(frames)})" if frames else ""
    return redact(f"{type(error).__name__}: {error}{place}")


def traceback_of(error: BaseException) -> str:
    """Return the traceback, from the user's first line on."""
    report = traceback.TracebackException.from_exception(error)
    frames = _users_frames(error)
    if frames:
        report.stack = traceback.StackSummary.from_list(report.stack[report.stack.index(frames[0]) :])
    return redact("".join(report.format()))


def _users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith(NOT_THE_USERS)]


def _place(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return the place of the last line; a notebook's cell has no meaningful file."""
    frame = frames[-1]
    is_cell = frame.filename.startswith("<") or "ipykernel_" in frame.filename
    functions = [call.name for call in frames if not call.name.startswith("<")]  # no comprehension
    where = functions[-1] if is_cell and functions else Path(frame.filename).name
    return f"{where}, line {frame.lineno}" + (f": {frame.line}" if frame.line else "")


def excerpt_of(sample: Sample, limit: int = 200) -> str:
    text = sample.text if len(sample.text) <= limit else sample.text[:limit] + "…"
    return f"the sample: {text!r}"
