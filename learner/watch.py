"""A learner's process seen from outside: whether it answers, and whether what it does gets on."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from contracts.errors import LearnerSilent
from learner.process import Progress
from learner.settings import LearnerSettings

IDLE: Progress = ("idle", 0, 1)
SILENT_S = 5.0  # that one that computes may need for an answer


@dataclass(slots=True)
class Watched:
    """What one process last said of itself."""

    name: str
    actor: Any
    settings: LearnerSettings
    said: Progress | None = None  # None: nothing yet, it starts
    asked: Any = None
    heard_at: float = field(default_factory=time.monotonic)
    changed_at: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """From now on it is waited for; what it said before was of something else."""
        self.said = self.said and IDLE
        self.heard_at = self.changed_at = time.monotonic()
        self.asked = self.actor.progress.remote()

    def look(self, what: str) -> None:
        """Take its answer, if there is one, and ask again.

        Args:
            what: is waited for.

        Raises:
            LearnerSilent: it has not answered, or got anywhere, for too long.
            ray.exceptions.RayError: it died.
        """
        now = time.monotonic()
        if ray.wait([self.asked], timeout=0)[0]:
            said = ray.get(self.asked)
            if said != self.said:
                self.said, self.changed_at = said, now
            self.heard_at = now
            self.asked = self.actor.progress.remote()
        elif self.said is None and now - self.heard_at > self.settings.start_timeout_s:
            raise LearnerSilent(
                f"waited {self.settings.start_timeout_s:.0f} s for {self.name} to start; "
                "learner.start_timeout_s= allows for more"
            )
        elif self.said is not None and now - self.heard_at > self.settings.stall_timeout_s:
            raise LearnerSilent(f"{self.name} gave no sign of life for {now - self.heard_at:.0f} s: {what}")
        if self.said is not None and now - self.changed_at > self.settings.progress_timeout_s:
            raise LearnerSilent(
                f"{self.name} answers, and got nowhere for {now - self.changed_at:.0f} s: {what}; "
                "learner.progress_timeout_s= allows for more"
            )

    def __str__(self) -> str:
        """What it is at, in words."""
        now = time.monotonic()
        if self.said is None:
            return f"{self.name} has not answered yet"
        if now - self.heard_at > SILENT_S:
            return f"{self.name} has not answered for {now - self.heard_at:.0f} s"
        phase, done, total = self.said
        return f"{self.name} has been at {phase} {done:,} of {total:,} for {now - self.changed_at:.0f} s"


def watch(actors: Sequence[Any], settings: LearnerSettings) -> list[Watched]:
    """All processes of a learner."""
    count = len(actors)
    if count == 1:
        return [Watched("the learner", actors[0], settings)]
    return [
        Watched(f"process {i} of {count} of the learner", actor, settings)
        for i, actor in enumerate(actors, start=1)
    ]
