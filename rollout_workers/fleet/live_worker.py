"""Track a live worker: its leases and its signs of life.

A poll asks for rollouts and for a sign of life. Its answer describes the worker at the time of the question,
however long the driver was busy since. So a late answer does not mean that the worker hangs.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.rollout import Lease, Rollout
from rollout_workers.fleet.places import Place
from rollout_workers.worker import WorkerReport

SLOW_S = 30.0  # an engine warms up at its first texts


@dataclass(slots=True)
class LiveWorker:
    """State of one worker; only `rollout_workers/fleet/worker_pool.py` holds it."""

    name: str
    pid: int
    place: Place
    push: str | None = None  # name of the push of its weights
    is_leaving: bool = False
    leases: dict[int, Lease] = field(default_factory=dict)
    num_restarts: int = 0  # restarts of its environments, from its last report
    idle_s: float = 0.0  # idle time in its last report
    num_cancels: int = 0  # cancellations sent to it
    up_since: float = field(default_factory=time.monotonic)
    progress: int = 0  # generated tokens and steps of environments
    progress_at: float = field(default_factory=time.monotonic)  # when it last made progress, or was idle
    polled_at: float | None = None  # when the unanswered poll was sent
    unanswered_s: float = 0.0  # time waited for this poll
    is_stalled: bool = False  # according to its last report

    def lease(self, leases: Sequence[Lease]) -> None:
        """Record leases that the worker got."""
        if not self.leases:
            self.progress_at = time.monotonic()
        self.leases |= {lease.id: lease for lease in leases}

    def cancel(self) -> None:
        """Record that the worker was told to forget its leases."""
        self.leases.clear()
        self.num_cancels += 1

    def polled(self) -> None:
        """Record a new poll."""
        self.polled_at, self.unanswered_s = time.monotonic(), 0.0

    def owes_an_answer(self, for_s: float) -> None:
        """Record that the last poll stayed unanswered for `for_s` more seconds."""
        self.unanswered_s += for_s

    def answered(self, report: WorkerReport, stall_timeout_s: float) -> list[Rollout]:
        """Record a poll's answer; return the finished rollouts of the worker's leases."""
        polled_at = self.polled_at
        self.polled_at, self.unanswered_s = None, 0.0
        progress = report.num_generated + report.num_steps
        if progress != self.progress or not self.leases:
            self.progress, self.progress_at = progress, time.monotonic()
        self.num_restarts, self.idle_s = report.num_restarts, report.idle_s
        if report.num_cancels != self.num_cancels:
            return []  # an answer from before the cancel; a lease with the same id may be out again
        if polled_at is not None and polled_at - self.progress_at > stall_timeout_s:
            self.is_stalled = True
        # A rollout counts only while the worker has its lease.
        return [rollout for rollout in report.rollouts if self.leases.pop(rollout.lease_id, None)]

    def why_lost(self, stall_timeout_s: float) -> str | None:
        """Return why the worker counts as hanging; None: it does not."""
        limit = f"rollout.stall_timeout_s={stall_timeout_s:g} is the limit"
        if self.unanswered_s > stall_timeout_s:
            return f"made no token for {self.unanswered_s:.0f} s and does not answer; {limit}"
        if self.is_stalled:
            return f"made no token for {time.monotonic() - self.progress_at:.0f} s; {limit}"
        return None

    @property
    def gets_on(self) -> bool:
        """Return whether the worker has made progress lately."""
        return time.monotonic() - self.progress_at <= SLOW_S

    def __str__(self) -> str:
        """Describe what the worker is doing."""
        passed_s = time.monotonic() - self.progress_at
        return f"{self.name} has {len(self.leases)} and showed progress {passed_s:.0f} s ago"
