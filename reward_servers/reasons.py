"""Reasons why a sample has no score, and the sample beside them, as messages show them."""

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import WhetstoneError
from contracts.scores import Sample
from contracts.secrets.redaction import redact

RAISED = (Exception, SystemExit)  # what a grader may raise without ending the process that serves it


OURS = Path(__file__).absolute().parents[1]
PACKAGES = ("contracts", "reward_servers", "rollout_workers", "learner", "services")
NOT_THE_USERS = (
    *(str(OURS / package) for package in PACKAGES),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)


class RaisedElsewhere(Exception):
    """An exception of another process: its traceback is the message."""


def reason_of(error: BaseException) -> str:
    """Return what was raised, and the user's line that raised it."""
    if isinstance(error, WhetstoneError):
        return redact(str(error))
    frames = _users_frames(error)
    place = f" ({_place(frames)})" if frames else ""
    return redact(f"{type(error).__name__}: {error}{place}")


def traceback_of(error: BaseException) -> str:
    """Return the traceback, from the user's first line on."""
    told = traceback.TracebackException.from_exception(error)
    own = _users_frames(error)
    if own:
        told.stack = traceback.StackSummary.from_list(told.stack[told.stack.index(own[0]) :])
    return redact("".join(told.format()))


def _users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith(NOT_THE_USERS)]


def _place(frames: Sequence[traceback.FrameSummary]) -> str:
    """Say where the last line is; a cell of a notebook has no file that people know."""
    frame = frames[-1]
    is_cell = frame.filename.startswith("<") or "ipykernel_" in frame.filename
    functions = [each.name for each in frames if not each.name.startswith("<")]  # no comprehension
    where = functions[-1] if is_cell and functions else Path(frame.filename).name
    return f"{where}, line {frame.lineno}" + (f": {frame.line}" if frame.line else "")


def excerpt_of(sample: Sample, limit: int = 200) -> str:
    text = sample.text if len(sample.text) <= limit else sample.text[:limit] + "…"
    return f"the sample: {text!r}"
