"""Watch a learner's process from outside: whether it answers, and whether it makes progress."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import ray

from contracts.errors import LearnerSilent
from learner.actors.handle import LearnerHandle
from learner.actors.process import SENDING, Progress
from learner.settings import LearnerSettings

IDLE: Progress = ("idle", 0, 1)
SILENT_S = 5.0  # a busy process may take this long to answer
SLOW_S = 60.0  # a micro-batch on a CPU may take this long


@dataclass(slots=True)
class Watched:
    """Last known progress of one process."""

    name: str
    process: LearnerHandle
    settings: LearnerSettings
    progress: Progress | None = None  # None: it starts and has not reported yet
    reply: "ray.ObjectRef[Progress] | None" = None
    heard_at: float = field(default_factory=time.monotonic)
    changed_at: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Start to wait for a new call: forget the progress of the last call."""
        self.progress = self.progress and IDLE
        self.heard_at = self.changed_at = time.monotonic()
        self.reply = self.process.progress()

    def is_up(self) -> None:
        """Record that the start is over, because short calls may end before `look` sees an answer."""
        self.progress = self.progress or IDLE

    def look(self, what: str) -> None:
        """Take the process's answer, if there is one, and ask again.

        Args:
            what: the current call, for messages.

        Raises:
            LearnerSilent: the process has not answered, or made no progress, for too long.
            ray.exceptions.RayError: the process died.
        """
        now = time.monotonic()
        if ray.wait([self.reply], timeout=0)[0]:
            latest = ray.get(self.reply)
            if latest != self.progress:
                self.progress, self.changed_at = latest, now
            self.heard_at = now
            self.reply = self.process.progress()
        elif self.progress is None and now - self.heard_at > self.settings.start_timeout_s:
            raise LearnerSilent(
                f"waited {self.settings.start_timeout_s:.0f} s for {self.name} to start; "
                "raise learner.start_timeout_s="
            )
        elif self.progress is not None and now - self.heard_at > self.settings.stall_timeout_s:
            raise LearnerSilent(
                f"{self.name} gave no sign of life for {now - self.heard_at:.0f} s: {what}; "
                f"learner.stall_timeout_s={self.settings.stall_timeout_s:g} is the limit"
            )
        if self.progress is None:
            return
        # A tensor takes seconds to send, and workers write nothing meanwhile.
        limit = "stall_timeout_s" if self.progress[0] == SENDING else "progress_timeout_s"
        if now - self.changed_at > getattr(self.settings, limit):
            raise LearnerSilent(
                f"{self.name} answers, but made no progress for {now - self.changed_at:.0f} s: {what}; "
                f"raise learner.{limit}="
            )

    @property
    def gets_on(self) -> bool:
        """Return whether the process answers and made progress lately."""
        now = time.monotonic()
        return (
            self.progress is not None and now - self.heard_at <= SILENT_S and now - self.changed_at <= SLOW_S
        )

    def __str__(self) -> str:
        """Describe what the process is doing."""
        now = time.monotonic()
        if self.progress is None:
            return f"{self.name} has not answered yet"
        if now - self.heard_at > SILENT_S:
            return f"{self.name} has not answered for {now - self.heard_at:.0f} s"
        phase, done, total = self.progress
        count = f" {done:,} of {total:,}" if total > 1 else ""
        return f"{self.name} has been at {phase}{count} for {now - self.changed_at:.0f} s"


def watch(processes: Sequence[LearnerHandle], settings: LearnerSettings) -> list[Watched]:
    """Watch all processes of a learner."""
    count = len(processes)
    if count == 1:
        return [Watched("the learner", processes[0], settings)]
    return [
        Watched(f"process {i} of {count} of the learner", process, settings)
        for i, process in enumerate(processes, start=1)
    ]
