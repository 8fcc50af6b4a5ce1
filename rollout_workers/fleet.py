"""The workers seen as one: leases given out, taken back when a worker is lost, given out again.

    generate(leases) ─▶ waiting ─▶ a worker's slot ─▶ poll ─▶ rollouts      a lease leaves its slot only
                           ▲                           │                    with its rollout, so each comes
                           └── lost: died, or silent ◀─┘                    back exactly once

`rollout_workers/members.py` starts, replaces and ends the workers. Here it is seen who makes no progress: one
that has leases and makes no token for `stall_timeout_s`, or does not answer that long, is lost.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from contracts.clients import PublishedWeights
from contracts.rollout import Lease, Rollout
from contracts.waiting import STARTS_S, Waiting
from rollout_workers.members import Members, Note, Slot
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import WorkerReport

POLL_S = 0.25  # a worker answers a poll after this long, even with nothing finished
FETCH_S = 0.02  # how long one look at all answers waits for the slowest
SCORED_AT_ONCE = 64  # texts of one call to a worker
LOOK_S = 2.0  # more between two looks, and it was the driver who was away


class Fleet:
    """`contracts.clients.FleetClient` over Ray actors.

    Args:
        note: is told of losses, and of whatever takes long.
        tell: is told how the start gets on; by default `note`.
    """

    def __init__(
        self,
        make_worker: Callable[[bool], Any],
        settings: RolloutSettings,
        note: Note,
        tell: Note | None = None,
    ) -> None:
        self._settings, self._note, self._tell = settings, note, tell or note
        self._waiting: deque[Lease] = deque()
        self._finished: list[Rollout] = []  # of what was submitted
        self.num_leased_again = 0
        self.environment_restarts = 0
        self.idle_s = 0.0
        self._looked_at = time.monotonic()
        self._members = Members(make_worker, settings, note, self._take_back)

    def wait_until_ready(self) -> None:
        """Wait for every worker's engine.

        Raises:
            DeadlineExceeded: an engine is not up after `rollout.start_timeout_s`.
            WorkerError: an engine can't start; an InputError where the user can mend it.
        """
        waiting = Waiting(self._tell, STARTS_S)
        while not self._members.is_complete:
            self._members.tend(wait_s=1.0)
            if waiting.is_due:
                waiting.tell("the workers", self._members.said_of_arrivals())

    @property
    def num_workers(self) -> int:
        return self._members.num_places

    @property
    def num_up(self) -> int:
        return len(self._members.working)

    @property
    def num_quarantined(self) -> int:
        return self._members.num_lost

    @property
    def pids(self) -> dict[str, int]:
        """Process id of each worker that is up."""
        return {slot.name: slot.pid for slot in self._members.slots.values()}

    def scale(self, num_workers: int) -> None:
        """New ones get the current weights, then leases; those that leave end what they have begun."""
        self._members.scale(num_workers)

    def submit(self, leases: Sequence[Lease]) -> None:
        self._waiting.extend(leases)

    def collect(self) -> list[Rollout]:
        self._finished += self._step(wait_s=0.0)
        finished, self._finished = self._finished, []
        return finished

    def generate(self, leases: Sequence[Lease]) -> Iterator[list[Rollout]]:
        self._waiting.extendleft(reversed(leases))  # whoever waits comes before what was only submitted
        missing = {lease.id for lease in leases}
        waiting = Waiting(self._note)
        while missing:
            finished = self._step(wait_s=POLL_S)
            rollouts = [rollout for rollout in finished if rollout.lease_id in missing]
            self._finished += [rollout for rollout in finished if rollout.lease_id not in missing]
            missing -= {rollout.lease_id for rollout in rollouts}
            if rollouts:
                waiting.progress()
            if waiting.is_due:
                waiting.tell(f"{len(missing)} of {len(leases)} rollouts", self._who_is_waited_for())
            yield rollouts

    def load_weights(self, weights: PublishedWeights) -> None:
        self._members.weights = weights
        slots = self._members.slots
        usable = {actor_id: weights.for_holder_of(slot.push) for actor_id, slot in slots.items()}
        arguments = {
            actor_id: {"manifest": each.manifest, "arrays": each.arrays, "mask_arrays": each.mask_arrays}
            for actor_id, each in usable.items()
        }
        for actor_id, each in usable.items():
            slots[actor_id].push = each.manifest.push  # who does not load it is lost
        self._call("load_weights", arguments, f"weights of version {weights.manifest.version}")
        self._wait_for_one()

    def score(self, texts: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        found: dict[int, tuple[float, ...]] = {}
        while missing := [index for index in range(len(texts)) if index not in found]:
            actor_ids = list(self._members.slots)
            shares = {
                actor_id: missing[first :: len(actor_ids)][:SCORED_AT_ONCE]
                for first, actor_id in enumerate(actor_ids)
            }
            arguments = {
                actor_id: {"texts": [texts[index] for index in share]} for actor_id, share in shares.items()
            }
            answers = self._call("score", arguments, f"log-probabilities of {len(missing)} texts")
            self._wait_for_one()
            for actor_id, scores in answers.items():
                found.update(zip(shares[actor_id], scores, strict=True))
        return [found[index] for index in range(len(texts))]

    def sleep(self) -> None:
        waiting = Waiting(self._note)
        while self._members.are_starting:  # an engine that starts takes memory
            self._members.tend(wait_s=1.0)
            if waiting.is_due:
                waiting.tell("workers that are to sleep", self._members.said_of_arrivals())
        asked: set[int] = set()
        while awake := self._members.slots.keys() - asked:  # whoever took a lost one's place is asked, too
            asked |= self._call("sleep", {actor_id: {} for actor_id in awake}, "its engine to sleep").keys()
            self._wait_for_one()

    def cancel_all(self) -> None:
        """Give up on everything that is leased."""
        self._waiting.clear()
        self._finished.clear()
        for slot in self._members.slots.values():
            slot.leases.clear()
            slot.num_cancels += 1
        self._call("cancel_all", {actor_id: {} for actor_id in self._members.slots}, "leases to be given up")

    def stop(self) -> None:
        """End every worker, once it has closed what it opened."""
        self._members.stop()

    # ---- leases ----

    def _step(self, wait_s: float) -> list[Rollout]:
        """Leases go out, rollouts come in; with no worker up, one is waited for that long."""
        self._members.tend(wait_s=0.0 if self._members.slots else wait_s)
        self._assign()
        return self._collect()

    def _assign(self) -> None:
        working = self._members.working
        if not self._waiting or not working:
            return
        share = -(-len(self._waiting) // len(working))
        for actor_id, slot in working.items():
            # A deterministic run leaves queueing to the engine, so that timing decides nothing.
            room = share if self._settings.deterministic else self._settings.max_concurrent - len(slot.leases)
            taken = [self._waiting.popleft() for _ in range(min(share, room, len(self._waiting)))]
            if not taken:
                continue
            if not self._members.send(actor_id, "submit", {"leases": taken}):  # it owes an answer to the last
                self._waiting.extendleft(reversed(taken))
                continue
            if not slot.leases:
                slot.alive_at = time.monotonic()
            slot.leases |= {lease.id: lease for lease in taken}

    def _take_back(self, leases: Sequence[Lease]) -> None:
        self._waiting.extendleft(reversed(leases))
        self.num_leased_again += len(leases)

    def _collect(self) -> list[Rollout]:
        """One round of polls; also where lost workers are noticed."""
        now = time.monotonic()
        for actor_id, slot in self._members.slots.items():
            if self._members.send(actor_id, "poll", {"wait_s": POLL_S}):  # dropped where one is in flight
                slot.polled_at, slot.unanswered_s = now, 0.0
            else:
                slot.unanswered_s += min(now - self._looked_at, LOOK_S)
        self._looked_at = now
        rollouts: list[Rollout] = []
        for actor_id, method, answer in self._members.answers(("poll", "submit"), FETCH_S):
            if method == "poll":
                rollouts += self._take(self._members.slots[actor_id], answer)
        self._lose_the_silent()
        return rollouts

    def _take(self, slot: Slot, report: WorkerReport) -> list[Rollout]:
        progress, polled_at = report.num_generated + report.num_steps, slot.polled_at
        slot.polled_at, slot.unanswered_s = None, 0.0
        if progress != slot.progress or not slot.leases:
            slot.progress, slot.alive_at = progress, time.monotonic()
        self.environment_restarts += report.num_restarts - slot.num_restarts
        slot.num_restarts = report.num_restarts
        self.idle_s += report.idle_s - slot.idle_s
        slot.idle_s = report.idle_s
        if report.num_cancels != slot.num_cancels:
            return []  # answered before it was told to forget: a lease of the same id may be out again
        if polled_at is not None and polled_at - slot.alive_at > self._settings.stall_timeout_s:
            slot.is_stalled = True
        # What a worker has lost the lease of no longer counts.
        return [rollout for rollout in report.rollouts if slot.leases.pop(rollout.lease_id, None)]

    def _lose_the_silent(self) -> None:
        """An answer tells of the time when it was asked for, however long the driver was away since then."""
        for actor_id, slot in list(self._members.slots.items()):
            if slot.unanswered_s > self._settings.stall_timeout_s:
                self._members.lose(
                    actor_id, f"made no token for {slot.unanswered_s:.0f} s, and does not answer"
                )
            elif slot.is_stalled:
                self._members.lose(actor_id, f"made no token for {time.monotonic() - slot.alive_at:.0f} s")

    # ---- calls ----

    def _call(self, method: str, arguments: Mapping[int, dict[str, Any]], what: str) -> dict[int, Any]:
        """One call to each of these workers; those that fail or outlast the stall time-out are replaced.

        Returns what the others answered.
        """
        for actor_id, own in arguments.items():
            self._members.send(actor_id, method, own)
        owing, answers = set(arguments), dict[int, Any]()
        deadline, waiting = time.monotonic() + self._settings.stall_timeout_s, Waiting(self._note)
        while owing and time.monotonic() < deadline:
            answers |= {actor_id: answer for actor_id, _, answer in self._members.answers([method], 0.5)}
            owing -= answers.keys()
            owing &= self._members.slots.keys()
            if waiting.is_due:
                waiting.tell(what, [self._members.slots[each].name for each in owing])
        for actor_id in owing:
            self._members.lose(actor_id, f"was waited {self._settings.stall_timeout_s:.0f} s for: {what}")
        return answers

    def _wait_for_one(self) -> None:
        """That is up; not where a learner was lost: then there may be no weights to catch up with."""
        waiting = Waiting(self._note)
        while not self._members.slots:
            self._members.tend(wait_s=1.0)
            if waiting.is_due:
                waiting.tell("a worker", self._members.said_of_arrivals())

    def _who_is_waited_for(self) -> list[str]:
        now = time.monotonic()
        said = [
            f"{s.name} has {len(s.leases)} and showed progress {now - s.alive_at:.0f} s ago"
            for s in self._members.slots.values()
        ]
        return said + self._members.said_of_arrivals()
