"""Own the states of the rollout workers: which ones start, work, leave or are lost, and which come next.

    scale(more)       engine up, weights proved        scale(fewer)         no leases left
    ─────────▶ STARTING ──────────────────▶ WORKING ──────────────▶ LEAVING ──────────────▶ CLOSING ─▶ ended
                ▲    │                       │  ◀── scale(more) ────   │
                │    └───────▶ LOST ◀────────┴─────────────────────────┘
                │               │  died, raised, silent, stalled, or had wrong weights
                └─ 1, 2 … 60 s ─┘  unless it was leaving; too many losses within an hour end the run

Workers are in `_starting`, in `_live` (WORKING and LEAVING) or in `_closing`; a place is empty for a while
after a loss (`places.py`). A lost worker's leases go back at once. `fleet.py` reads states and reports
events, but changes no state.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import ray

from contracts.clients import PublishedWeights
from contracts.errors import DeadlineExceeded
from contracts.processes import timeline
from contracts.rollout import Lease, Rollout
from rollout_workers.fleet.live_worker import LiveWorker
from rollout_workers.fleet.places import Place, Places
from rollout_workers.fleet.starting_worker import StartingWorker
from rollout_workers.fleet.worker_calls import WorkerCalls, WorkerHandle
from rollout_workers.fleet.worker_failures import is_death, never_up, reason_of, reason_of_start
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker

CLOSE_S = 5.0  # time for workers to close before they are killed
POLL_S = 0.25  # a worker answers a poll after this time, even without a finished rollout
MOST_POLLS = 256  # polls per second of all idle workers together; with more workers each poll waits longer
FETCH_S = 0.02  # how long each check of all answers waits for the slowest
LOOK_S = 2.0  # if checks are further apart, the driver was busy elsewhere

Note = Callable[[str], None]
Answer = TypeVar("Answer")


class WorkerPool:
    """Pool of the workers and their states.

    Args:
        make_worker: starts a worker's process and returns Ray's handle; its argument says whether the place
            is extra.
        note: called with messages about workers.
        give_back: called with a lost worker's leases.
    """

    def __init__(
        self,
        make_worker: Callable[[bool], Any],
        settings: RolloutSettings,
        note: Note,
        give_back: Callable[[Sequence[Lease]], None],
    ) -> None:
        self._make_worker, self._settings, self._note = make_worker, settings, note
        self._give_back = give_back
        self._calls = WorkerCalls()
        self.send, self.prepare = self._calls.send, self._calls.prepare
        self._starting: list[StartingWorker] = []
        self._live: dict[int, LiveWorker] = {}
        self._closing: list[tuple[ray.ObjectRef, WorkerHandle, float]] = []  # close call, worker, start time
        self._num_started = 0
        self._any_was_up = False
        self._weights: PublishedWeights | None = None  # weights for workers that start later
        self._looked_at = time.monotonic()
        self.environment_restarts = 0
        self.idle_s = 0.0
        self._places = Places(settings, note)
        for place in self._places:
            self._start(place)

    # ---- questions ----

    @property
    def num_places(self) -> int:
        return len(self._places)

    @property
    def num_lost(self) -> int:
        return self._places.num_lost

    @property
    def live(self) -> list[int]:
        """Return the ids of the live workers, working or leaving."""
        return list(self._live)

    @property
    def working(self) -> dict[int, int]:
        """Return the number of leases of each worker that may get more, by id."""
        return {id: len(worker.leases) for id, worker in self._live.items() if not worker.is_leaving}

    @property
    def is_complete(self) -> bool:
        return len(self.working) == len(self._places)

    @property
    def are_starting(self) -> bool:
        return bool(self._starting)

    @property
    def pids(self) -> dict[str, int]:
        """Return the process id of each live worker, by name."""
        return {worker.name: worker.pid for worker in self._live.values()}

    def name_of(self, worker_id: int) -> str:
        return self._live[worker_id].name

    def said_of_live(self) -> list[str]:
        return [str(worker) for worker in self._live.values()]

    @property
    def gets_on(self) -> bool:
        """Return whether all workers are live and make progress."""
        return self.is_complete and all(worker.gets_on for worker in self._live.values())

    def said_of_starting(self) -> list[str]:
        return [str(worker) for worker in self._starting] + self._places.said_of_empty()

    # ---- calls to live workers ----

    def answers(self, wait_s: float, *methods: Callable[..., Answer]) -> Iterator[tuple[int, Answer]]:
        """Yield the answers that have come; a worker whose call failed is lost."""
        for worker_id, answer in self._calls.answers(wait_s, *methods):
            if isinstance(answer, Exception):
                self.lose(worker_id, reason_of(answer))
            elif worker_id in self._live:
                yield worker_id, answer

    def lease(self, worker_id: int, leases: Sequence[Lease]) -> bool:
        """Give a worker leases. False: another such call is in flight, so the worker did not get them."""
        if not self.send(worker_id, RolloutWorker.submit, leases=leases):
            return False
        self._live[worker_id].lease(leases)
        return True

    def collect(self) -> list[Rollout]:
        """Poll all workers once; return finished rollouts. Workers that hang are lost."""
        away_s = min(time.monotonic() - self._looked_at, LOOK_S)
        self._looked_at = time.monotonic()
        wait_s = max(POLL_S, len(self._live) / MOST_POLLS)
        for worker_id, worker in self._live.items():
            if self.send(worker_id, RolloutWorker.poll, wait_s=wait_s):  # dropped if one is in flight
                worker.polled()
            else:
                worker.owes_an_answer(away_s)
        rollouts: list[Rollout] = []
        for worker_id, report in self.answers(FETCH_S, RolloutWorker.poll, RolloutWorker.submit):
            if report is not None:  # from a poll
                worker = self._live[worker_id]
                timeline.receive(worker.name, report.spans)
                self.environment_restarts += report.num_restarts - worker.num_restarts
                self.idle_s += report.idle_s - worker.idle_s
                rollouts += worker.answered(report, self._settings.stall_timeout_s)
        for worker_id, worker in list(self._live.items()):
            if (reason := worker.why_lost(self._settings.stall_timeout_s)) is not None:
                self.lose(worker_id, reason)
        return rollouts

    def load_weights(self, weights: PublishedWeights) -> list[int]:
        """Send the weights to all live workers, and return their ids; starting ones load them later.

        Raises:
            LearnerLost: a worker needs all weights, but the learner that has them is gone.
        """
        self._weights = weights
        usable = {id: weights.for_holder_of(worker.push) for id, worker in self._live.items()}
        for worker_id, its_weights in usable.items():
            self._live[worker_id].push = its_weights.manifest.push  # a worker that does not load it is lost
            self.send(
                worker_id,
                RolloutWorker.load_weights,
                manifest=its_weights.manifest,
                arrays=its_weights.arrays,
                mask_arrays=its_weights.mask_arrays,
            )
        return list(usable)

    def hold(self, weights: PublishedWeights) -> None:
        """Keep weights, which all live workers have, for workers that start later."""
        self._weights = weights

    def cancel_all(self) -> list[int]:
        """Tell all live workers to forget their leases; return their ids."""
        for worker_id, worker in self._live.items():
            worker.cancel()
            self.send(worker_id, RolloutWorker.cancel_all)
        return self.live

    # ---- from state to state ----

    def tend(self, wait_s: float) -> None:
        """Admit workers that have started, start those that are due, end those that are done.

        Wait at most `wait_s` for a starting worker.

        Raises:
            DeadlineExceeded: at the run's start an engine does not run after `rollout.start_timeout_s`.
            WorkerError: an engine can't start, too many workers were lost, or several in a row died at their
                start.
            InputError: an engine can't start, but the user can fix that.
        """
        for place in self._places.due():
            self._start(place)
        self._end_those_done()
        if self._starting:
            ray.wait([worker.call for worker in self._starting], num_returns=1, timeout=wait_s)
        elif wait_s:
            time.sleep(min(wait_s, self._places.until_next_due()))
        for worker in list(self._starting):
            try:
                is_up = worker.advance(self._weights)
            except (ray.exceptions.RayError, DeadlineExceeded) as error:
                self._turn_away(worker, error)
            else:
                if is_up:
                    self._admit(worker)

    def scale(self, num_workers: int) -> None:
        """Change the number of workers: more start, or those with the fewest leases leave."""
        leaving = [worker for worker in self._live.values() if worker.is_leaving]
        while len(self._places) < num_workers:
            if leaving:
                back = leaving.pop()
                back.is_leaving = False
                self._places.bring_back(back.place)
            else:
                self._start(self._places.add())
        for place in sorted(self._places, key=self._num_leases)[: len(self._places) - num_workers]:
            self._vacate(place)

    def lose(self, worker_id: int, reason: str) -> None:
        """End a worker, give its leases back, and leave its place empty for a while."""
        worker = self._live.pop(worker_id, None)
        if worker is None:  # several of its calls may report the loss
            return
        self._calls.remove(worker_id).kill()
        self._give_back(list(worker.leases.values()))
        lasted_s = time.monotonic() - worker.up_since
        self._places.lost(worker.place, worker.name, reason, len(worker.leases), lasted_s)

    def stop(self) -> None:
        """End every worker after it has closed what it opened."""
        workers = list(self._calls.workers.values())
        closing = [worker.close() for worker in workers] + [call for call, _, _ in self._closing]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for worker in [*workers, *(w.handle for w in self._starting), *(w for _, w, _ in self._closing)]:
            worker.kill()

    def _start(self, place: Place) -> None:
        place.empty_until = None
        name, handle = f"worker {self._num_started}", WorkerHandle(self._make_worker(place.is_extra))
        self._starting.append(StartingWorker(name, place, handle, self._settings))
        self._num_started += 1

    def _admit(self, starting: StartingWorker) -> None:
        self._starting.remove(starting)
        assert starting.pid is not None
        name, pid, place = starting.name, starting.pid, starting.place
        self._live[self._calls.add(starting.handle)] = LiveWorker(name, pid, place, push=starting.push)
        place.was_up = self._any_was_up = True
        if self.num_lost or place.is_added:
            self._note(f"{name} (process {pid}) is up and has the current weights")

    def _turn_away(self, starting: StartingWorker, error: Exception) -> None:
        self._starting.remove(starting)
        starting.handle.kill()
        name, place, has_started = starting.name, starting.place, starting.pid is not None
        deserves_another = place.deserves_another(was_killed=is_death(error))
        if place.is_added and not place.was_up and not deserves_another:
            # This is no loss, because the cluster may have no room for it.
            self._places.remove(place)
            self._note(f"{name}: {reason_of_start(error)}; {len(self._places)} workers remain")
            return
        if isinstance(error, DeadlineExceeded) and not has_started:
            if not place.was_up:
                raise error
            if self._live:
                # Its node may be gone for good; the other workers continue.
                self._places.leave_empty(place, name, f"did not start: {error}")
                return
        if not self._any_was_up and not deserves_another:
            raise never_up(name, error) from None
        self._places.lost(place, name, f"did not start: {reason_of_start(error)}", num_leases=0, lasted_s=0.0)

    def _num_leases(self, place: Place) -> int:
        """Return how many leases delay a place's leaving; below 0 if it has no live worker."""
        return next((len(worker.leases) for worker in self._live.values() if worker.place is place), -1)

    def _vacate(self, place: Place) -> None:
        self._places.remove(place)
        for starting in [start for start in self._starting if start.place is place]:
            self._starting.remove(starting)
            starting.handle.kill()
        for worker in self._live.values():
            worker.is_leaving |= worker.place is place

    def _end_those_done(self) -> None:
        now = time.monotonic()
        for worker_id, worker in list(self._live.items()):
            if worker.is_leaving and not worker.leases:
                del self._live[worker_id]
                handle = self._calls.remove(worker_id)
                self._closing.append((handle.close(), handle, now))
                self._note(f"{worker.name} has left; {len(self._places)} workers are planned")
        for closing in list(self._closing):
            call, handle, since = closing
            if now - since > CLOSE_S or ray.wait([call], timeout=0)[0]:
                self._closing.remove(closing)
                handle.kill()
