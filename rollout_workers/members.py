"""Who is of the fleet: workers start, catch up, work, are lost and replaced; more or fewer may be wanted.

    place ──▶ arrival ──▶ up ──▶ leaving (fewer are asked for: no new leases, then it is closed)
      ▲          │         │
      └── 1, 2, 4 … s ◀────┴── lost: died, silent, or wrong weights; its leases are given back at once

Ray's RLlib keeps the books of who is healthy and what is in flight. It notices only deaths; what it lacks is
here and in `rollout_workers/fleet.py`.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.rllib.utils.actor_manager import FaultTolerantActorManager

from contracts.clients import PublishedWeights
from contracts.errors import DeadlineExceeded, InputError, WorkerError
from contracts.rollout import Lease
from rollout_workers.arrival import Arrival, Place
from rollout_workers.settings import RolloutSettings

LAPSE_S = 3600.0  # a loss counts for so long against `rollout.max_restarts`
MOST_DEATHS_AT_START = 3  # of processes in a row at one place, where no worker was ever up
CLOSE_S = 5.0  # how long workers may take to close before they are ended

Note = Callable[[str], None]
Answer = tuple[int, str, Any]  # of which worker, to which call, and what


@dataclass(slots=True)
class Slot:
    """What is known of one worker that is up."""

    name: str
    pid: int
    place: Place
    leases: dict[int, Lease] = field(default_factory=dict)
    push: str | None = None  # of weights, that it has
    is_leaving: bool = False
    progress: int = 0  # tokens written and steps of environments
    num_restarts: int = 0  # of its environments
    idle_s: float = 0.0  # as it last said
    num_cancels: int = 0  # that it was told of
    up_since: float = field(default_factory=time.monotonic)
    alive_at: float = field(default_factory=time.monotonic)  # when it last showed progress, or was idle
    polled_at: float | None = None  # when the poll was sent that it owes an answer to
    unanswered_s: float = 0.0  # that this poll was waited for
    is_stalled: bool = False  # by its own answer


class Members:
    """The workers as Ray actors."""

    def __init__(
        self,
        make_worker: Callable[[bool], Any],  # told whether its place is an extra one
        settings: RolloutSettings,
        note: Note,
        give_back: Callable[[Sequence[Lease]], None],
    ) -> None:
        self._make_worker, self._settings, self._note = make_worker, settings, note
        self._give_back = give_back
        self._manager = FaultTolerantActorManager(max_remote_requests_in_flight_per_actor=1)
        self._arrivals: list[Arrival] = []
        self._closing: list[tuple[Any, Any, float]] = []  # the call to close, the actor, since when
        self._num_started = 0
        self.slots: dict[int, Slot] = {}
        self.weights: PublishedWeights | None = None  # what a late joiner catches up with
        self.num_lost = 0
        self._any_was_up = False
        self._lost_at: deque[float] = deque()  # within the last hour
        self._places = [Place() for _ in range(settings.num_workers)]
        for place in self._places:
            self._start(place)

    @property
    def num_places(self) -> int:
        return len(self._places)

    @property
    def working(self) -> dict[int, Slot]:
        """Those that may be given leases."""
        return {actor_id: slot for actor_id, slot in self.slots.items() if not slot.is_leaving}

    @property
    def is_complete(self) -> bool:
        return len(self.working) == len(self._places)

    @property
    def are_starting(self) -> bool:
        """Whether anybody is on the way in."""
        return bool(self._arrivals)

    def tend(self, wait_s: float) -> None:
        """Whoever has arrived is let in, whoever is due starts, whoever is done leaves.

        Waits for an arrival, at most that long.

        Raises:
            DeadlineExceeded: an engine of the run's start is not up after `rollout.start_timeout_s`.
            WorkerError: an engine can't start, too many were lost, or one after the other died as it started.
            InputError: an engine can't start, and the user can mend it.
        """
        self._start_those_due()
        self._end_those_done()
        if self._arrivals:
            ray.wait([arrival.call for arrival in self._arrivals], num_returns=1, timeout=wait_s)
        elif wait_s:
            time.sleep(min(wait_s, self._until_next_start()))
        for arrival in list(self._arrivals):
            try:
                is_up = arrival.advance(self.weights)
            except (ray.exceptions.RayError, DeadlineExceeded) as error:
                self._turn_away(arrival, error)
            else:
                if is_up:
                    self._admit(arrival)

    def lose(self, actor_id: int, reason: str) -> None:
        """End it, give its leases back, and leave its place empty for a while."""
        slot = self.slots.pop(actor_id, None)
        if slot is None:  # several of its calls may bring the news
            return
        ray.kill(self._manager.remove_actor(actor_id))
        self._give_back(list(slot.leases.values()))
        self._count_loss(slot.place, slot.name, reason, len(slot.leases), time.monotonic() - slot.up_since)

    def scale(self, num_workers: int) -> None:
        """From now on there are to be so many: more start, or those who would lose least leave."""
        leaving = [slot for slot in self.slots.values() if slot.is_leaving]
        while len(self._places) < num_workers:
            if leaving:
                back = leaving.pop()
                back.is_leaving = False
                self._places.append(back.place)
            else:
                num_first = sum(not place.is_extra for place in self._places)
                place = Place(is_added=True, is_extra=num_first >= self._settings.num_workers)
                self._places.append(place)
                self._start(place)
        for place in sorted(self._places, key=self._num_leases)[: len(self._places) - num_workers]:
            self._vacate(place)

    def stop(self) -> None:
        """End every worker, once it has closed what it opened."""
        actors = list(self._manager.actors().values())
        closing = [actor.close.remote() for actor in actors] + [call for call, _, _ in self._closing]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for actor in [*actors, *(a.actor for a in self._arrivals), *(actor for _, actor, _ in self._closing)]:
            ray.kill(actor)

    def send(self, actor_id: int, method: str, arguments: dict[str, Any]) -> bool:
        """False: a call of this method is still in flight, so this one was dropped."""
        return bool(
            self._manager.foreach_actor_async(
                method, tag=method, kwargs=arguments, remote_actor_ids=[actor_id]
            )
        )

    def answers(self, methods: Sequence[str], wait_s: float) -> Iterator[Answer]:
        """What has come; whoever failed is lost."""
        for result in self._manager.fetch_ready_async_reqs(tags=list(methods), timeout_seconds=wait_s):
            if not result.ok:
                self.lose(result.actor_id, reason_of(result.get()))
            elif result.actor_id in self.slots:
                yield result.actor_id, result.tag, result.get()

    def said_of_arrivals(self) -> list[str]:
        now = time.monotonic()
        said = [f"{each.name} has been starting for {now - each.since:.0f} s" for each in self._arrivals]
        return said + [
            f"a place stays empty for {place.empty_until - now:.0f} s more"
            for place in self._places
            if place.empty_until is not None
        ]

    # ---- places ----

    def _start(self, place: Place) -> None:
        place.empty_until = None
        name = f"worker {self._num_started}"
        self._arrivals.append(Arrival(name, place, self._make_worker(place.is_extra), self._settings))
        self._num_started += 1

    def _start_those_due(self) -> None:
        for place in self._places:
            if place.empty_until is not None and time.monotonic() >= place.empty_until:
                self._start(place)

    def _until_next_start(self) -> float:
        now = time.monotonic()
        return min(
            (max(0.0, p.empty_until - now) for p in self._places if p.empty_until is not None), default=0.0
        )

    def _admit(self, arrival: Arrival) -> None:
        self._arrivals.remove(arrival)
        assert arrival.pid is not None
        self._manager.add_actors([arrival.actor])
        (actor_id,) = set(self._manager.actor_ids()) - set(self.slots)
        self.slots[actor_id] = Slot(arrival.name, arrival.pid, arrival.place, push=arrival.push)
        arrival.place.was_up = self._any_was_up = True
        if self.num_lost or arrival.place.is_added:
            self._note(f"{arrival.name} (process {arrival.pid}) is up and has the current weights")

    def _turn_away(self, arrival: Arrival, error: Exception) -> None:
        self._arrivals.remove(arrival)
        ray.kill(arrival.actor)
        place, has_started = arrival.place, arrival.pid is not None
        if place.is_added and not place.was_up and not _deserves_another(place, error):
            # Nothing was lost: there may be no room for it.
            self._places.remove(place)
            self._note(f"{arrival.name}: {_said(error)}; there stay {len(self._places)} workers")
            return
        if isinstance(error, DeadlineExceeded) and not has_started:
            if not place.was_up:
                raise error
            if self.slots:
                # Its node may be gone for good: no fault of the workers, and the others go on meanwhile.
                self._leave_empty(place, arrival.name, f"did not start: {error}")
                return
        if not self._any_was_up and not _deserves_another(place, error):
            raise _never_up(arrival, error) from None
        self._count_loss(place, arrival.name, f"did not start: {_said(error)}", num_leases=0, lasted_s=0.0)

    def _count_loss(self, place: Place, name: str, reason: str, num_leases: int, lasted_s: float) -> None:
        if place not in self._places:
            self._note(f"{name} {reason}; it was leaving; {num_leases} prompts are leased again")
            return
        self.num_lost += 1
        now, limit = time.monotonic(), self._settings.max_restarts
        self._lost_at.append(now)
        while self._lost_at[0] < now - LAPSE_S:
            self._lost_at.popleft()
        found = f"loss {len(self._lost_at)} within an hour"
        if len(self._lost_at) > limit:
            raise WorkerError(f"{name} {reason}; that is {found}, and rollout.max_restarts={limit}")
        self._leave_empty(
            place, name, f"{reason}; {num_leases} prompts are leased again; {found}, of {limit}", lasted_s
        )

    def _leave_empty(self, place: Place, name: str, said: str, lasted_s: float = 0.0) -> None:
        empty_s = place.backoff.lost(lasted_s)
        place.empty_until = time.monotonic() + empty_s
        self._note(f"{name} {said}; another one starts in {empty_s:.0f} s")

    # ---- leaving ----

    def _num_leases(self, place: Place) -> int:
        """What its leaving holds up; below 0 where nobody is up."""
        return next((len(slot.leases) for slot in self.slots.values() if slot.place is place), -1)

    def _vacate(self, place: Place) -> None:
        self._places.remove(place)
        for arrival in [each for each in self._arrivals if each.place is place]:
            self._arrivals.remove(arrival)
            ray.kill(arrival.actor)
        for slot in self.slots.values():
            slot.is_leaving |= slot.place is place

    def _end_those_done(self) -> None:
        now = time.monotonic()
        for actor_id, slot in list(self.slots.items()):
            if slot.is_leaving and not slot.leases:
                del self.slots[actor_id]
                actor = self._manager.remove_actor(actor_id)
                self._closing.append((actor.close.remote(), actor, now))
                self._note(f"{slot.name} has left; there are {len(self._places)} workers to be")
        for closing in list(self._closing):
            call, actor, since = closing
            if now - since > CLOSE_S or ray.wait([call], timeout=0)[0]:
                self._closing.remove(closing)
                ray.kill(actor)


def _deserves_another(place: Place, error: Exception) -> bool:
    """Whether a worker that has not come up was killed. An engine that raised would raise again; so would one
    die again that has taken down process after process.
    """
    return _is_death(error) and place.backoff.num_losses + 1 < MOST_DEATHS_AT_START


def _never_up(arrival: Arrival, error: Exception) -> InputError | WorkerError:
    """What to raise where no worker can start."""
    if not _is_death(error):
        cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
        kind = InputError if isinstance(cause, InputError) else WorkerError
        return kind(f"{arrival.name}: {cause}")
    return WorkerError(
        f"{arrival.name} {reason_of(error)} as it started, like {MOST_DEATHS_AT_START - 1} before it. The "
        "machine may lack memory: whetstone plan estimates what a worker takes. Ray says: "
        f"{' '.join(str(error).split())[:300]}"
    )


def _is_death(error: Exception) -> bool:
    """Whether the actor's process or node is gone, by no exception of its own."""
    if isinstance(error, ray.exceptions.RayActorError):
        return not error.actor_init_failed
    return isinstance(error, ray.exceptions.NodeDiedError | ray.exceptions.OutOfMemoryError)


def reason_of(error: Exception) -> str:
    if isinstance(error, ray.exceptions.RayTaskError):
        return f"failed: {str(error.cause).strip().splitlines()[-1]}"
    return f"died ({type(error).__name__})"


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, DeadlineExceeded) else reason_of(error)
