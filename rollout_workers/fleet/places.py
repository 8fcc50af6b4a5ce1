"""Places of workers, one for each wanted worker; after a loss a place stays empty for a while."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from contracts.errors import WorkerError
from contracts.processes.restart_budget import RestartBudget
from rollout_workers.fleet.backoff import Backoff
from rollout_workers.settings import RolloutSettings

MOST_DEATHS_AT_START = 3  # deaths in a row at a place that never had a live worker


@dataclass(slots=True, eq=False)
class Place:
    """A slot for one worker; when the worker is lost, a new one takes the slot."""

    is_added: bool = False  # added during the run
    is_extra: bool = False  # beyond the number of workers at the run's start
    was_up: bool = False  # whether a worker was ever live here
    backoff: Backoff = field(default_factory=Backoff)
    empty_until: float | None = None  # None: a worker fills it

    def deserves_another(self, was_killed: bool) -> bool:
        """Return whether another worker may succeed where this one did not start.

        An engine that raised would raise again. After several killed processes the next would be killed, too.
        """
        return was_killed and self.backoff.num_losses + 1 < MOST_DEATHS_AT_START


class Places:
    """Places of a fleet, and the number of losses that a run allows."""

    def __init__(self, settings: RolloutSettings, note: Callable[[str], None]) -> None:
        self._note, self._num_first = note, settings.num_workers
        self._budget = RestartBudget(settings.max_restarts, "rollout.max_restarts", WorkerError)
        self._places = [Place() for _ in range(settings.num_workers)]
        self.num_lost = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    def add(self) -> Place:
        """Add a place during the run."""
        num_first = sum(not place.is_extra for place in self._places)
        self._places.append(place := Place(is_added=True, is_extra=num_first >= self._num_first))
        return place

    def bring_back(self, place: Place) -> None:
        """Restore a removed place whose worker has not left yet."""
        self._places.append(place)

    def remove(self, place: Place) -> None:
        self._places.remove(place)

    def lost(self, place: Place, name: str, reason: str, num_leases: int, lasted_s: float) -> None:
        """Count the loss of a place's worker, and leave the place empty for some seconds.

        Raises:
            WorkerError: the loss exceeds `rollout.max_restarts`.
        """
        if place not in self._places:
            self._note(f"{name} {reason}; it was leaving; {num_leases} prompts are leased again")
            return
        self.num_lost += 1
        count = self._budget.spend(f"{name} {reason}")
        losses = f"loss {count} within an hour, of {self._budget.limit}"
        self.leave_empty(place, name, f"{reason}; {num_leases} prompts are leased again; {losses}", lasted_s)

    def leave_empty(self, place: Place, name: str, reason: str, lasted_s: float = 0.0) -> None:
        empty_s = place.backoff.lost(lasted_s)
        place.empty_until = time.monotonic() + empty_s
        self._note(f"{name} {reason}; another one starts in {empty_s:.0f} s")

    def due(self) -> list[Place]:
        """Return the places that have been empty for long enough."""
        now = time.monotonic()
        return [place for place in self._places if place.empty_until is not None and now >= place.empty_until]

    def until_next_due(self) -> float:
        """Return the seconds until a place is due; 0 if none is empty."""
        now = time.monotonic()
        return min(
            (max(0.0, p.empty_until - now) for p in self._places if p.empty_until is not None), default=0.0
        )

    def said_of_empty(self) -> list[str]:
        now = time.monotonic()
        return [
            f"a place stays empty for {place.empty_until - now:.0f} s more"
            for place in self._places
            if place.empty_until is not None
        ]
