"""Run all workers as one: give leases out, take them back when a worker is lost, give them out again.

    generate(leases) ─▶ waiting ─▶ a worker ─▶ poll ─▶ rollouts      a lease leaves its worker only with its
                           ▲          │                              rollout, so each comes back exactly once
                           └── lost ◀─┘

`worker_pool.py` decides which workers are live and which are lost. The fleet decides which leases a worker
gets, and waits for answers.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from contracts.clients import PublishedWeights
from contracts.processes.waiting import STARTS_S, Waiting
from contracts.rollout import Lease, Rollout
from rollout_workers.fleet.worker_pool import POLL_S, Note, WorkerPool
from rollout_workers.settings import RolloutSettings
from rollout_workers.weights.broadcasts import Broadcasts
from rollout_workers.worker import RolloutWorker

SCORED_AT_ONCE = 64  # texts in one call to a worker
FIRST_WEIGHTS_S = 60.0  # time before a warning, because an engine warms up when it gets its first weights

Answer = TypeVar("Answer")


class Fleet:
    """`contracts.clients.FleetClient` over Ray actors.

    Args:
        make_worker: starts a `RolloutWorker` as a Ray actor; its argument says whether the place is extra.
        note: called with messages about losses, and about waits without progress.
        tell: called with messages about the start; by default `note`.
        say: called with messages about a long wait for workers that make progress; by default `note`.
    """

    def __init__(
        self,
        make_worker: Callable[[bool], Any],
        settings: RolloutSettings,
        note: Note,
        tell: Note | None = None,
        say: Note | None = None,
    ) -> None:
        self._settings, self._note, self._tell, self._say = settings, note, tell or note, say or note
        self._waiting: deque[Lease] = deque()
        self._finished: list[Rollout] = []  # rollouts of submitted leases
        self.num_leased_again = 0
        self._first_weights_s: float | None = FIRST_WEIGHTS_S  # seconds before each warning; None: as usual
        self._pool = WorkerPool(make_worker, settings, note, self._take_back)
        self._broadcasts = Broadcasts(self._pool, self._await, settings.tensor_parallel_size, note)

    def prepare(self) -> None:
        """Do the slow preparation that needs no worker; a caller has time for it while the workers start."""
        self._pool.prepare()

    def wait_until_ready(self) -> None:
        """Wait for every worker's engine.

        Raises:
            DeadlineExceeded: an engine does not run after `rollout.start_timeout_s`.
            WorkerError: an engine can't start.
            InputError: an engine can't start, but the user can fix that.
        """
        waiting = Waiting(self._tell, STARTS_S)
        while not self._pool.is_complete:
            self._pool.tend(wait_s=1.0)
            if waiting.is_due:
                waiting.tell("the workers", self._pool.said_of_starting())

    @property
    def num_workers(self) -> int:
        return self._pool.num_places

    @property
    def num_up(self) -> int:
        return len(self._pool.working)

    @property
    def num_quarantined(self) -> int:
        return self._pool.num_lost

    @property
    def environment_restarts(self) -> int:
        return self._pool.environment_restarts

    @property
    def idle_s(self) -> float:
        return self._pool.idle_s

    @property
    def pids(self) -> dict[str, int]:
        """Return the process id of each live worker, by name."""
        return self._pool.pids

    def scale(self, num_workers: int) -> None:
        """Change the number of workers: new ones get weights, then leases; leaving ones finish theirs."""
        self._pool.scale(num_workers)

    def submit(self, leases: Sequence[Lease]) -> None:
        self._waiting.extend(leases)

    def collect(self) -> list[Rollout]:
        self._finished += self._step(wait_s=0.0)
        finished, self._finished = self._finished, []
        return finished

    def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        self._waiting.extendleft(reversed(leases))  # awaited leases come before submitted ones
        missing = {lease.id for lease in leases}
        waiting = Waiting(self._note, say=self._say)
        while missing:
            finished = self._step(wait_s=POLL_S)
            rollouts = [rollout for rollout in finished if rollout.lease_id in missing]
            self._finished += [rollout for rollout in finished if rollout.lease_id not in missing]
            missing -= {rollout.lease_id for rollout in rollouts}
            if rollouts:
                waiting.progress()
            if waiting.is_due:
                who = self._pool.said_of_live() + self._pool.said_of_starting()
                waiting.tell(f"{len(missing)} of {len(leases)} rollouts", who, gets_on=self._pool.gets_on)
            yield rollouts

    def load_weights(self, weights: PublishedWeights) -> None:
        if weights.broadcast is None or not self._broadcasts.send(weights, weights.broadcast):
            worker_ids = self._pool.load_weights(weights)
            what = f"weights of version {weights.manifest.version}"
            self._await(RolloutWorker.load_weights, worker_ids, what, note_every_s=self._first_weights_s)
        self._first_weights_s = None
        self._wait_for_one()

    def logprobs(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        logprobs: dict[int, tuple[float, ...]] = {}
        while missing := [index for index in range(len(texts)) if index not in logprobs]:
            workers = self._pool.live
            shares = {
                worker_id: missing[first :: len(workers)][:SCORED_AT_ONCE]
                for first, worker_id in enumerate(workers)
            }
            for worker_id, share in shares.items():
                self._pool.send(worker_id, RolloutWorker.logprobs, texts=[texts[index] for index in share])
            what = f"log-probabilities of {len(missing)} texts"
            answers = self._await(RolloutWorker.logprobs, workers, what)
            self._wait_for_one()
            for worker_id, answer in answers.items():
                logprobs.update(zip(shares[worker_id], answer, strict=True))
        return [logprobs[index] for index in range(len(texts))]

    def sleep(self) -> None:
        waiting = Waiting(self._note)
        while self._pool.are_starting:  # an engine that starts takes memory
            self._pool.tend(wait_s=1.0)
            if waiting.is_due:
                waiting.tell("workers that will sleep", self._pool.said_of_starting())
        asleep: set[int] = set()
        while awake := set(self._pool.live) - asleep:  # ask a lost worker's replacement, too
            for worker_id in awake:
                self._pool.send(worker_id, RolloutWorker.sleep)
            asleep |= self._await(RolloutWorker.sleep, awake, "its engine to sleep").keys()
            self._wait_for_one()

    def cancel_all(self) -> None:
        """Cancel all leases, on the workers, too, and drop rollouts that were not collected."""
        self._waiting.clear()
        self._finished.clear()
        self._await(RolloutWorker.cancel_all, self._pool.cancel_all(), "leases to be given up")

    def stop(self) -> None:
        """End every worker after it has closed what it opened."""
        self._pool.stop()

    # ---- leases ----

    def _step(self, wait_s: float) -> list[Rollout]:
        """Give out leases and collect rollouts; without a live worker, wait at most `wait_s` for one."""
        self._pool.tend(wait_s=0.0 if self._pool.live else wait_s)
        self._assign()
        return self._pool.collect()

    def _assign(self) -> None:
        working = self._pool.working
        if not self._waiting or not working:
            return
        share = -(-len(self._waiting) // len(working))
        for worker_id, num_leases in working.items():
            # A deterministic run leaves queueing to the engine, so that timing decides nothing.
            room = share if self._settings.deterministic else self._settings.max_concurrent - num_leases
            taken = [self._waiting.popleft() for _ in range(min(share, room, len(self._waiting)))]
            if taken and not self._pool.lease(worker_id, taken):  # it still owes an answer
                self._waiting.extendleft(reversed(taken))

    def _take_back(self, leases: Sequence[Lease]) -> None:
        self._waiting.extendleft(reversed(leases))
        self.num_leased_again += len(leases)

    # ---- waits ----

    def _await(
        self,
        method: Callable[..., Answer],
        worker_ids: Iterable[int],
        what: str,
        note_every_s: float | None = None,
    ) -> dict[int, Answer]:
        """Return these workers' answers to a call; replace workers that fail or exceed the stall time-out."""
        owing, answers = set(worker_ids), dict[int, Answer]()
        deadline = time.monotonic() + self._settings.stall_timeout_s
        waiting = Waiting(self._note, note_every_s)
        while owing and time.monotonic() < deadline:
            answers |= dict(self._pool.answers(0.5, method))
            owing -= answers.keys()
            owing &= set(self._pool.live)
            if waiting.is_due:
                waiting.tell(what, [self._pool.name_of(worker_id) for worker_id in owing])
        for worker_id in owing:
            limit_s = self._settings.stall_timeout_s
            reason = (
                f"did not answer within {limit_s:.0f} s ({what}); if it was only slow, raise "
                "rollout.stall_timeout_s"
            )
            self._pool.lose(worker_id, reason)
        return answers

    def _wait_for_one(self) -> None:
        """Wait until at least one worker is live.

        Do not call this after the learner process has died, because a new worker may then never get weights
        and never become live.
        """
        waiting = Waiting(self._note)
        while not self._pool.live:
            self._pool.tend(wait_s=1.0)
            if waiting.is_due:
                waiting.tell("a worker", self._pool.said_of_starting())
