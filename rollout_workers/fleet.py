"""The workers as Ray actors: leases given out, taken back when a worker is lost, given out again.

    generate(leases) ─▶ waiting ─▶ a worker's slot ─▶ poll ─▶ rollouts      a lease leaves its slot only
                           ▲                           │                    with its rollout, so each comes
                           └── lost: died, or silent ◀─┘                    back exactly once

Ray's RLlib keeps the books of who is healthy and what is in flight. It notices only deaths, so what
it lacks is here: a worker that has leases and makes no token for `stall_timeout_s` is ended and
replaced; a new one is brought to the current weights before it gets leases.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.rllib.utils.actor_manager import FaultTolerantActorManager

from contracts.clients import PublishedWeights
from contracts.errors import DeadlineExceeded, InputError, WorkerError
from contracts.rollout import Lease, Rollout
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import WorkerReport

POLL_S = 0.25  # a worker answers a poll after this long, even with nothing finished
FETCH_S = 0.02  # how long one look at all answers waits for the slowest
NOTE_EVERY_S = 15.0
SCORED_AT_ONCE = 64  # texts of one call to a worker
AWAY_S = 2.0  # longer than this between two rounds of polls, and the driver did something else
CLOSE_S = 5.0  # how long workers may take to close before they are ended

Note = Callable[[str], None]


@dataclass(slots=True)
class _Slot:
    """What is known of one healthy worker."""

    name: str
    pid: int
    leases: dict[int, Lease] = field(default_factory=dict)
    progress: int = 0  # tokens written and steps of environments
    num_restarts: int = 0  # of its environments
    idle_s: float = 0.0  # as it last said
    num_cancels: int = 0  # that it was told of
    alive_at: float = field(default_factory=time.monotonic)  # when it last showed progress, or was idle


@dataclass(slots=True)
class _Starting:
    name: str
    actor: Any
    ready: Any
    since: float = field(default_factory=time.monotonic)


class Fleet:
    """`contracts.clients.RolloutClient` over Ray actors."""

    def __init__(self, make_worker: Callable[[], Any], settings: RolloutSettings, note: Note) -> None:
        self._make_worker, self._settings, self._note = make_worker, settings, note
        self._manager = FaultTolerantActorManager(max_remote_requests_in_flight_per_actor=1)
        self._slots: dict[int, _Slot] = {}
        self._starting: list[_Starting] = []
        self._waiting: deque[Lease] = deque()
        self._finished: list[Rollout] = []  # of what was submitted
        self._weights: PublishedWeights | None = None
        self._num_started = self._num_lost = 0
        self.num_leased_again = 0
        self.environment_restarts = 0
        self.idle_s = 0.0
        self._looked_at = time.monotonic()
        for _ in range(settings.num_workers):
            self._start_worker()

    def wait_until_ready(self) -> None:
        """Wait for every worker's engine.

        Raises:
            DeadlineExceeded: an engine is not up after `rollout.start_timeout_s`.
            WorkerError: an engine can't start; an InputError where the user can mend it.
        """
        while self._starting:
            self._receive_started(wait_s=1.0)

    @property
    def num_workers(self) -> int:
        return self._settings.num_workers

    def submit(self, leases: Sequence[Lease]) -> None:
        self._waiting.extend(leases)

    def collect(self) -> list[Rollout]:
        self._finished += self._step(wait_s=0.0)
        finished, self._finished = self._finished, []
        return finished

    def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        self._waiting.extendleft(reversed(leases))  # whoever waits comes before what was only submitted
        missing = {lease.id for lease in leases}
        noted_at = started = time.monotonic()
        while missing:
            finished = self._step(wait_s=POLL_S)
            rollouts = [rollout for rollout in finished if rollout.lease_id in missing]
            self._finished += [rollout for rollout in finished if rollout.lease_id not in missing]
            missing -= {rollout.lease_id for rollout in rollouts}
            if rollouts:
                noted_at = time.monotonic()
            elif time.monotonic() - noted_at > NOTE_EVERY_S:
                noted_at = time.monotonic()
                self._note(self._what_is_waited_for(len(missing), len(leases), noted_at - started))
            yield rollouts

    def load_weights(self, weights: PublishedWeights) -> None:
        self._weights = weights
        arguments = {
            "manifest": weights.manifest,
            "arrays": weights.arrays,
            "mask_arrays": weights.mask_arrays,
        }
        what = f"weights of version {weights.manifest.version}"
        self._call("load_weights", dict.fromkeys(self._slots, arguments), what)

    def score(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        found: dict[int, tuple[float, ...]] = {}
        while missing := [index for index in range(len(texts)) if index not in found]:
            shares = {
                actor_id: missing[first :: len(self._slots)][:SCORED_AT_ONCE]
                for first, actor_id in enumerate(self._slots)
            }
            arguments = {
                actor_id: {"texts": [texts[index] for index in share]} for actor_id, share in shares.items()
            }
            answers = self._call("score", arguments, f"log-probabilities of {len(missing)} texts")
            for actor_id, scores in answers.items():
                found.update(zip(shares[actor_id], scores, strict=True))
        return [found[index] for index in range(len(texts))]

    def cancel_all(self) -> None:
        """Give up on everything that is leased."""
        self._waiting.clear()
        self._finished.clear()
        for slot in self._slots.values():
            slot.leases.clear()
            slot.num_cancels += 1
        self._call("cancel_all", {actor_id: {} for actor_id in self._slots}, "leases to be given up")

    @property
    def pids(self) -> dict[str, int]:
        """Process id of each healthy worker."""
        return {slot.name: slot.pid for slot in self._slots.values()}

    def stop(self) -> None:
        """End every worker, once it has closed what it opened."""
        closing = [actor.close.remote() for actor in self._manager.actors().values()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for actor in [*self._manager.actors().values(), *(s.actor for s in self._starting)]:
            ray.kill(actor)

    # ---- leases ----

    def _step(self, wait_s: float) -> list[Rollout]:
        """Leases go out, rollouts come in; with no worker up, one is waited for that long."""
        self._receive_started(wait_s=0.0 if self._slots else wait_s)
        self._assign()
        return self._collect()

    def _assign(self) -> None:
        if not self._waiting or not self._slots:
            return
        share = -(-len(self._waiting) // len(self._slots))
        for actor_id, slot in list(self._slots.items()):
            # A deterministic run leaves queueing to the engine, so that timing decides nothing.
            room = share if self._settings.deterministic else self._settings.max_concurrent - len(slot.leases)
            taken = [self._waiting.popleft() for _ in range(min(share, room, len(self._waiting)))]
            if not taken:
                continue
            if not self._send(actor_id, "submit", {"leases": taken}):  # it still owes the answer to the last
                self._waiting.extendleft(reversed(taken))
                continue
            if not slot.leases:
                slot.alive_at = time.monotonic()
            slot.leases |= {lease.id: lease for lease in taken}

    def _collect(self) -> list[Rollout]:
        """One round of polls; also where lost workers are noticed."""
        self._forgive_absence()
        for actor_id in self._slots:
            self._send(actor_id, "poll", {"wait_s": POLL_S})  # dropped where one is in flight
        results = self._manager.fetch_ready_async_reqs(tags=["poll", "submit"], timeout_seconds=FETCH_S)
        rollouts: list[Rollout] = []
        for result in results:
            if not result.ok:
                self._lose(result.actor_id, _reason(result.get()))
            elif result.tag == "poll" and result.actor_id in self._slots:
                rollouts += self._take(self._slots[result.actor_id], result.get())
        self._end_silent()
        return rollouts

    def _take(self, slot: _Slot, report: WorkerReport) -> list[Rollout]:
        progress = report.num_generated + report.num_steps
        if progress != slot.progress or not slot.leases:
            slot.progress, slot.alive_at = progress, time.monotonic()
        self.environment_restarts += report.num_restarts - slot.num_restarts
        slot.num_restarts = report.num_restarts
        self.idle_s += report.idle_s - slot.idle_s
        slot.idle_s = report.idle_s
        if report.num_cancels != slot.num_cancels:
            return []  # answered before it was told to forget: a lease of the same id may be out again
        # What a worker has lost the lease of no longer counts.
        return [rollout for rollout in report.rollouts if slot.leases.pop(rollout.lease_id, None)]

    # ---- workers ----

    def _start_worker(self) -> None:
        actor = self._make_worker()
        self._starting.append(_Starting(f"worker {self._num_started}", actor, actor.ready.remote()))
        self._num_started += 1

    def _receive_started(self, wait_s: float) -> None:
        if not self._starting:
            if not self._slots:
                raise WorkerError("no rollout worker is left")
            return
        ray.wait([starting.ready for starting in self._starting], num_returns=1, timeout=wait_s)
        for starting in list(self._starting):
            done, _ = ray.wait([starting.ready], timeout=0)
            if done:
                self._starting.remove(starting)
                self._admit(starting)
            elif time.monotonic() - starting.since > self._settings.start_timeout_s:
                if self._slots:  # the others go on, and another one is tried
                    self._starting.remove(starting)
                    ray.kill(starting.actor)
                    waited_s = self._settings.start_timeout_s
                    self._count_loss(starting.name, f"was not up after {waited_s:.0f} s", num_leases=0)
                    continue
                raise DeadlineExceeded(
                    f"waited {self._settings.start_timeout_s:.0f} s for the engine of {starting.name} "
                    "to start; rollout.start_timeout_s= allows for more"
                )

    def _admit(self, starting: _Starting) -> None:
        try:
            pid = ray.get(starting.ready)
            if self._weights is not None:  # a late joiner catches up before it gets leases
                weights = self._weights
                ray.get(
                    starting.actor.load_weights.remote(weights.manifest, weights.arrays, weights.mask_arrays),
                    timeout=self._settings.stall_timeout_s,
                )
        except ray.exceptions.RayError as error:
            ray.kill(starting.actor)
            if not self._slots and not self._num_lost:  # none was ever up: another try would fail as well
                cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
                kind = InputError if isinstance(cause, InputError) else WorkerError
                raise kind(f"{starting.name}: {cause}") from None
            self._count_loss(starting.name, f"did not start: {_reason(error)}", num_leases=0)
            return
        (actor_id,) = set(self._add(starting.actor)) - set(self._slots)
        self._slots[actor_id] = _Slot(starting.name, pid)
        if self._num_lost:
            self._note(f"{starting.name} (process {pid}) is up and has the current weights")

    def _add(self, actor: Any) -> list[int]:
        self._manager.add_actors([actor])
        return list(self._manager.actor_ids())

    def _forgive_absence(self) -> None:
        """While nobody asks, a worker can't show progress."""
        now = time.monotonic()
        if (away_s := now - self._looked_at) > AWAY_S:
            for slot in self._slots.values():
                slot.alive_at += away_s
        self._looked_at = now

    def _end_silent(self) -> None:
        now = time.monotonic()
        for actor_id, slot in list(self._slots.items()):
            if slot.leases and now - slot.alive_at > self._settings.stall_timeout_s:
                self._lose(actor_id, f"made no token for {now - slot.alive_at:.0f} s")

    def _lose(self, actor_id: int, reason: str) -> None:
        slot = self._slots.pop(actor_id, None)
        if slot is None:  # several of its calls may bring the news
            return
        ray.kill(self._manager.remove_actor(actor_id))
        self._waiting.extendleft(reversed(slot.leases.values()))
        self.num_leased_again += len(slot.leases)
        self._count_loss(slot.name, reason, len(slot.leases))

    def _count_loss(self, name: str, reason: str, num_leases: int) -> None:
        self._num_lost += 1
        limit = self._settings.max_restarts
        if self._num_lost > limit:
            raise WorkerError(
                f"{name} {reason}; that is loss {self._num_lost}, and rollout.max_restarts={limit}"
            )
        self._note(
            f"{name} {reason}; {num_leases} prompts are leased again, "
            f"replacement {self._num_lost} of {limit} starts"
        )
        self._start_worker()

    # ---- calls ----

    def _send(self, actor_id: int, method: str, arguments: dict[str, Any]) -> bool:
        """False: a call of this method is still in flight, so this one was dropped."""
        return bool(
            self._manager.foreach_actor_async(
                method, tag=method, kwargs=arguments, remote_actor_ids=[actor_id]
            )
        )

    def _call(self, method: str, arguments: Mapping[int, dict[str, Any]], what: str) -> dict[int, Any]:
        """One call to each of these workers; those that fail or outlast the stall time-out are replaced.

        Returns what the others answered.
        """
        for actor_id, own in arguments.items():
            self._send(actor_id, method, own)
        owing, answers = set(arguments), {}
        deadline = time.monotonic() + self._settings.stall_timeout_s
        while owing and time.monotonic() < deadline:
            for result in self._manager.fetch_ready_async_reqs(tags=method, timeout_seconds=0.5):
                owing.discard(result.actor_id)
                if result.ok:
                    answers[result.actor_id] = result.get()
                else:
                    self._lose(result.actor_id, _reason(result.get()))
        for actor_id in owing:
            self._lose(actor_id, f"was waited {self._settings.stall_timeout_s:.0f} s for: {what}")
        while not self._slots:
            self._receive_started(wait_s=1.0)
        return answers

    def _what_is_waited_for(self, num_missing: int, num_leases: int, seconds: float) -> str:
        now = time.monotonic()
        slots = [
            f"{s.name} has {len(s.leases)} and showed progress {now - s.alive_at:.0f} s ago"
            for s in self._slots.values()
        ]
        starting = [f"{s.name} has been starting for {now - s.since:.0f} s" for s in self._starting]
        return f"waiting {seconds:.0f} s for {num_missing} of {num_leases} rollouts: " + "; ".join(
            slots + starting
        )


def _reason(error: Exception) -> str:
    if isinstance(error, ray.exceptions.RayTaskError):
        return f"failed: {str(error.cause).strip().splitlines()[-1]}"
    return f"died ({type(error).__name__})"
