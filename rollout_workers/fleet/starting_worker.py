"""Start a worker without waiting for it: its engine starts, then it catches up with the weights."""

import time

import ray

from contracts.clients import PublishedWeights
from contracts.errors import DeadlineExceeded
from rollout_workers.fleet.places import Place
from rollout_workers.fleet.worker_calls import WorkerHandle
from rollout_workers.settings import RolloutSettings


class StartingWorker:
    """Worker that is starting and gets no leases yet."""

    def __init__(self, name: str, place: Place, handle: WorkerHandle, settings: RolloutSettings) -> None:
        self.name, self.place, self.handle = name, place, handle
        self.call: ray.ObjectRef = handle.ready()  # the awaited call: the engine runs, or has the weights
        self.since = time.monotonic()
        self.pid: int | None = None  # None: the engine does not run yet
        self.loads: PublishedWeights | None = None
        self.push: str | None = None  # name of its weights' push, on which another push may be based
        self._settings = settings

    def advance(self, weights: PublishedWeights | None) -> bool:
        """Check the start; return whether the worker runs and has proved that it has these weights.

        Weights published while earlier ones load are loaded next.

        Raises:
            DeadlineExceeded: the start takes too long.
            ray.exceptions.RayError: the worker can't start, died, or has the wrong weights.
            LearnerLost: the worker needs all weights, but the learner that has them is gone.
        """
        if not ray.wait([self.call], timeout=0)[0]:
            self._check_deadline()
            return False
        answer = ray.get(self.call)
        if self.pid is None:
            self.pid = answer
        if self.loads is weights:
            return True
        assert weights is not None
        usable = weights.for_holder_of(self.push)
        self.loads, self.push, self.since = weights, usable.manifest.push, time.monotonic()
        self.call = self.handle.load_weights(usable)
        return False

    def _check_deadline(self) -> None:
        what, setting, allowed_s = (
            ("engine", "start_timeout_s", self._settings.start_timeout_s)
            if self.pid is None
            else ("weights", "stall_timeout_s", self._settings.stall_timeout_s)
        )
        if time.monotonic() - self.since > allowed_s:
            verb = "start" if self.pid is None else "arrive"
            raise DeadlineExceeded(
                f"waited {allowed_s:.0f} s for the {what} of {self.name} to {verb}; raise rollout.{setting}"
            )

    def __str__(self) -> str:
        """Describe what the worker is doing."""
        return f"{self.name} has been starting for {time.monotonic() - self.since:.0f} s"
