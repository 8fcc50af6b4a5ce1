"""A worker on its way in: its engine starts, then it catches up with the weights. Nobody waits for it."""

import time
from dataclasses import dataclass, field
from typing import Any

import ray

from contracts.clients import PublishedWeights
from contracts.errors import DeadlineExceeded
from rollout_workers.backoff import Backoff
from rollout_workers.settings import RolloutSettings


@dataclass(slots=True, eq=False)
class Place:
    """What one worker after the other fills."""

    is_added: bool = False  # while the run went on
    is_extra: bool = False  # beyond as many as the run began with
    was_up: bool = False  # a worker of it, once
    backoff: Backoff = field(default_factory=Backoff)
    empty_until: float | None = None  # None: somebody fills it


@dataclass(slots=True, eq=False)
class Arrival:
    """A worker that gets no leases yet."""

    name: str
    place: Place
    actor: Any
    settings: RolloutSettings
    call: Any = None  # what is waited for: the engine, or that weights are loaded
    pid: int | None = None  # None: the engine is not up
    loads: PublishedWeights | None = None
    push: str | None = None  # their name, where another may be based on them
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.call = self.actor.ready.remote()

    def advance(self, weights: PublishedWeights | None) -> bool:
        """See what has come of it. True: it is up, and has proved that it has these weights.

        Those that were published while it loaded earlier ones are loaded next.

        Raises:
            DeadlineExceeded: it takes too long.
            ray.exceptions.RayError: it can't start, died, or has the wrong weights.
            LearnerLost: it needs all of the weights, and who has them is gone.
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
        self.call = self.actor.load_weights.remote(usable.manifest, usable.arrays, usable.mask_arrays)
        return False

    def _check_deadline(self) -> None:
        what, setting, allowed_s = (
            ("engine", "start_timeout_s", self.settings.start_timeout_s)
            if self.pid is None
            else ("weights", "stall_timeout_s", self.settings.stall_timeout_s)
        )
        if time.monotonic() - self.since > allowed_s:
            verb = "start" if self.pid is None else "arrive"
            raise DeadlineExceeded(
                f"waited {allowed_s:.0f} s for the {what} of {self.name} to {verb}; rollout.{setting}= "
                "allows for more"
            )
