"""Stream of groups: an iteration trains on the first whole groups that finish, within a bound.

    in flight  ■ ■ □ ■ □ ■ ■ □ ◪      ■ finished   ◪ finished, but teaches nothing   □ being written
    trained on ■ ■   ■   ■            the first four; ◪ is dropped, and another prompt is leased instead

`group_schedule.py` chooses the groups. Groups that wait for a later update keep their texts meanwhile.
Prompts are leased in order as groups finish, even while the learner trains. No more texts are leased than
the workers can soon write, because a queued text would grow old. If the algorithm refills (dynamic
sampling), a finished group that teaches nothing leaves the stream.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from contracts.errors import RunError
from contracts.processes.waiting import Waiting
from contracts.rollout import Rollout
from learner.algorithms.base import Algorithm
from services.training.loop.batches import Generated
from services.training.loop.collecting import Collected, expect_some
from services.training.loop.group_schedule import GroupSchedule, InFlight
from services.training.loop.refilled import Tally, not_full, nothing_learned
from services.training.loop.rollout_stream import NOTE_S, PAUSE_S, require_fresh
from services.training.loop.statistics.length_bias import LengthBias, Lengths
from services.training.loop.streamed_group import StreamedGroup

QUEUED = 0.25  # leased texts that wait for a worker, as a share of the texts that workers write at once


@dataclass(eq=False)
class FinishedGroups(Generated):
    """Source of scored groups in the order in which they finish. A caller that waits calls `attend`."""

    algorithm: Algorithm
    _: KW_ONLY
    max_staleness: int
    iterations: int
    max_concurrent: int  # most texts that one worker writes at once

    def __post_init__(self) -> None:
        super().__post_init__()
        self._schedule, self._bias = GroupSchedule(self.num_prompts, self.max_staleness), LengthBias()
        self._groups: dict[int, StreamedGroup] = {}  # in flight, by number, in the order of their leases
        self._dropped: dict[int, StreamedGroup] = {}  # finished since the last batch; they teach nothing
        self._update = self._version = 0  # next update; version of the workers' weights
        self._num_finished = self._num_answered = self._restarts = 0
        self._tally, self._has_told, self._bound_s = Tally(self.num_prompts), False, 0.0

    def state(self) -> Mapping[str, Any]:
        """Return the prompts' state, which names the groups in flight, and the statistics of lengths.

        A resumed run leases those groups again with the same numbers and seeds.
        """
        return {**self.prompts.state(), "lengths": self._bias.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; drop rollouts in progress, and lease them again."""
        if self._groups:
            self.workers.cancel_all()
        self._groups.clear()
        self._dropped.clear()
        self.prompts.restore(state)
        self._bias = LengthBias.from_state(state.get("lengths", {}))

    def prepare(self, done: int) -> None:
        """Lease new prompts; the workers' weights are those after `done` iterations."""
        self._update = self._version = done
        self._lease()

    def attend(self) -> None:
        self._pump()

    def next(self, done: int) -> Collected:
        """Return the groups of the iteration after `done` ones; wait until enough are finished and scored.

        Raises:
            RewardError, InputError, EpisodeError, RunError: as in `Collector` and `expect_some`.
            RunError: the algorithm can learn from no group.
        """
        self.meter.begin()
        self.prepare(done)
        for phase in ("rollout", "reward"):
            self.collector.console.phase(phase)
        started, written_at, bound_since = time.perf_counter(), None, None
        waiting = self._begin_waiting()
        while (chosen := self._choose()) is None:
            self.collector.check_stop()
            if self._pump():
                waiting = self._begin_waiting()
                continue
            if written_at is None and self._are_written():
                written_at = time.perf_counter()
            if bound_since is None and self._num_ready() >= self.num_prompts:
                bound_since = time.perf_counter()
            if waiting.is_due:
                waiting.tell(self._missing())
            time.sleep(PAUSE_S)
        ended = time.perf_counter()
        batch = self._hand_out(chosen)
        batch.rollout_s = (written_at or ended) - started
        batch.reward_s = ended - started - batch.rollout_s
        self._bound_s = ended - bound_since if bound_since is not None else 0.0
        require_fresh(batch.rollouts, done, self._schedule.max_staleness)
        return expect_some(batch, self.collector.failures, done + 1)

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        """Return the workers' metrics over the whole iteration, and those of the order."""
        generated = sum(rollout.num_generated for rollout in batch.rollouts)
        if self._refills:
            generated = self._tally.num_tokens
        info = self.meter.info(iteration_s) | self.prompts.metrics() | self._bias.metrics()
        info |= {
            "throughput/generated_tokens_per_s": generated / iteration_s,
            "order/in_flight": float(len(self._groups)),
            "order/bound_wait_s": self._bound_s,
        }
        return info | (self._tally.metrics() if self._refills else {})

    # ---- writing ----

    @property
    def _refills(self) -> int:
        return self.algorithm.refills

    @property
    def _in_flight(self) -> list[InFlight]:
        return [group.in_flight for group in self._groups.values()]

    def _lease(self) -> None:
        """Lease as many prompts as the staleness bound, the workers and the end of the run allow."""
        in_flight = len(self._groups)
        room = self._schedule.room(in_flight, self._num_fresh(), self._update, self._version)
        room = min(room, (self.iterations - self._update) * self.num_prompts - in_flight)
        at_once = (1 + QUEUED) * self.workers.num_up * self.max_concurrent / self.prompts.group_size
        room = min(
            room, max(1, round(at_once)) - sum(bool(waiting.missing) for waiting in self._groups.values())
        )
        if room < 1:
            return
        leases = self.prompts.lease(room)
        due = self._version + self._schedule.max_staleness
        whole = self.collector.groups_of(leases)  # one queue for all leases returns whole groups
        for lease in leases:
            group = self._groups.setdefault(lease.group, StreamedGroup(lease.group, due, whole))
            group.missing.add(lease.id)
        self.workers.submit(leases)

    def _num_fresh(self) -> int:
        """Return how many groups are finished, or are still written with no later group finished."""
        newest = self._bias.newest
        return sum(
            group.place is not None or (bool(group.missing) and number > newest)
            for number, group in self._groups.items()
        )

    def _pump(self) -> bool:
        """Take finished texts and scores, and lease more prompts; return whether any came."""
        restarts = self.workers.environment_restarts
        finished = self.workers.collect()
        self._restarts += self.workers.environment_restarts - restarts
        by_group: dict[int, list[Rollout]] = {}
        for rollout in finished:
            group = self._groups.get(rollout.group)
            if group is not None and rollout.lease_id in group.missing:
                by_group.setdefault(rollout.group, []).append(rollout)
        for number, rollouts in by_group.items():
            self.collector.console.advance("rollout", len(rollouts))
            self._groups[number].take_texts(rollouts, self.collector)
        scored = [number for number, group in self._groups.items() if group.take_scores(self.collector)]
        num_answered = self.collector.rewards.scoring().num_answered
        if scored or num_answered > self._num_answered:  # a new score restarts the time-out of the others
            for group in self._groups.values():
                group.scoring.start_anew()
        self._num_answered = num_answered
        for number in [*by_group, *scored]:
            self._finish(number)
        self._lease()
        return bool(finished or scored)

    def _finish(self, number: int) -> None:
        """Give a written and scored group its place; drop it if it teaches nothing."""
        group = self._groups.get(number)
        if group is None or not group.is_finished or group.place is not None:
            return
        group.place, self._num_finished = self._num_finished, self._num_finished + 1
        rollouts = group.rollouts
        group.teaching = self.algorithm.teaching(rollouts) if self._refills else rollouts
        if self._refills and not group.teaching:
            self._dropped[number] = self._groups.pop(number)

    # ---- handing out ----

    def _choose(self) -> list[int] | None:
        """Return the groups to train on; None if more must finish first."""
        num_finished = len(self._dropped) + self._num_ready()
        is_spent = bool(self._refills) and num_finished >= (1 + self._refills) * self.num_prompts
        chosen = self._schedule.choose(self._in_flight, self._update, short=is_spent)
        if chosen is None and is_spent and not self._num_ready():
            self._hand_out([])
            if self._tally.rewards:
                raise RunError(f"iteration {self._update}: {nothing_learned(self._tally, self._refills)}")
            raise self.collector.failures.nothing_left(f"iteration {self._update}: no group could be scored")
        return chosen

    def _hand_out(self, chosen: Sequence[int]) -> Collected:
        """Return the batch of these groups. Mark them and all dropped groups as done."""
        done = {number: self._groups.pop(number) for number in chosen} | self._dropped
        batch, scored = Collected(), [rollout for number in sorted(done) for rollout in done[number].rollouts]
        self._tally = self._count(done, len(chosen))
        self.prompts.finish_groups(sorted(done), scored)
        self._bias.done_with(
            {number: Lengths.of(group.collected.rollouts) for number, group in done.items()},
            list(self._groups),
        )
        for group in done.values():
            group.collected.rollouts = group.teaching
            batch.add(group.collected)
        batch.num_environment_restarts, self._restarts = self._restarts, 0
        self._dropped = {}
        self._update += 1
        self._lease()
        return batch

    def _count(self, done: Mapping[int, StreamedGroup], num_kept: int) -> Tally:
        """Return the counts of the prompts that this batch finishes."""
        tally = Tally(self.num_prompts, leased=len(done), kept=num_kept)
        tally.rounds = -(-len(done) // self.num_prompts)
        tally.lost = sum(not group.collected.rollouts for group in self._dropped.values())
        tally.constant = len(self._dropped) - tally.lost
        for group in done.values():
            tally.rewards += [rollout.total_reward for rollout in group.collected.rollouts]
            tally.num_tokens += sum(rollout.num_generated for rollout in group.collected.rollouts)
        if self._refills and num_kept and tally.missing and not self._has_told:
            self._has_told = True
            self.collector.console.warn(not_full(tally, self._refills))
        return tally

    # ---- waiting ----

    def _num_ready(self) -> int:
        return sum(group.place is not None for group in self._groups.values())

    def _are_written(self) -> bool:
        """Tell whether only scores are missing for a batch."""
        written = [
            InFlight(number, group.due, None if group.missing else index)
            for index, (number, group) in enumerate(self._groups.items())
        ]
        return self._schedule.choose(written, self._update) is not None

    def _begin_waiting(self) -> Waiting:
        return Waiting(self._tell, NOTE_S, rarer=True)

    def _tell(self, text: str) -> None:
        """Report the wait: a warning for slow rollouts, a note for slow scores."""
        if self._are_written():
            self.collector.tell_of_scores(text)
        else:
            self.collector.console.warn(text)

    def _missing(self) -> str:
        if self._are_written():
            waiting = sum(group.scoring.num_rollouts for group in self._groups.values())
            return f"the scores of {waiting} texts: {self.collector.rewards.scoring()}"
        due = [group for group in self._groups.values() if group.place is None and group.due <= self._update]
        if due and self._num_ready() >= self.num_prompts:
            return f"{len(due)} groups that would be older than rollout.max_staleness after this update"
        return f"{self.num_prompts - self._num_ready()} groups of this iteration"
