"""Stream of rollouts, generated while the learner trains: whole iterations ahead, within a bound.

    iteration   1   2   3   4          with max_staleness=1, while the weights are of version 1 (one
    leased      ██  ██  ██             update is done): iteration 2 is being trained on, 3 being written
    trained on  ██  ░░

The rollouts of iteration i are leased once i - 1 - max_staleness updates are done, and update i trains on
them. So no token in them is older than max_staleness versions. The order of prompts alone decides an
iteration's leases: short texts can't crowd out long ones. With max_staleness=0 nothing is written ahead.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.clients import FleetClient
from contracts.errors import RunError
from contracts.processes.waiting import Waiting
from contracts.rollout import Rollout
from reward_servers.settings import Part
from services.loop.batches import BatchSource
from services.loop.collecting import Collected, Collector, expect_some
from services.loop.pending import PendingParts
from services.loop.statistics.iteration_info import WorkerMeter
from services.loop.whole_groups import WholeGroups
from services.sources.leasing import LeaseSource

NOTE_S = 15.0  # time without progress before the console says what the run waits for
PAUSE_S = 0.02  # between two checks where nothing has come


@dataclass(slots=True)
class _Ahead:
    """Rollouts of a coming iteration."""

    missing: set[int]  # leases that are still being written
    found: Collected
    groups: WholeGroups | None = None  # where finished rollouts wait for the others of their prompt
    scoring: PendingParts = field(default_factory=PendingParts)

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self.scoring


class RolloutStream(BatchSource):
    """Source of scored rollouts, an iteration at a time; a caller that waits elsewhere calls `attend`."""

    def __init__(
        self,
        prompts: LeaseSource,
        num_prompts: int,
        collector: Collector,
        workers: FleetClient,
        rewards: tuple[Part, ...] = (),
        *,
        max_staleness: int,
        iterations: int,
    ) -> None:
        self._prompts, self._num_prompts = prompts, num_prompts
        self._collector, self._workers, self._rewards = collector, workers, rewards
        self._max_staleness, self._iterations = max_staleness, iterations
        self._meter = WorkerMeter(workers)
        self._ahead: deque[_Ahead] = deque()
        self._num_answered = 0  # texts that the rewards had scored when we last looked

    @property
    def rewards(self) -> tuple[Part, ...]:
        return self._rewards

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; rollouts in progress are dropped, and will be leased again."""
        if self._ahead:
            self._workers.cancel_all()
        self._ahead.clear()
        self._prompts.restore(state)

    def prepare(self, done: int) -> None:
        """Lease as far ahead as `max_staleness` allows after `done` iterations."""
        while done + len(self._ahead) < min(done + 1 + self._max_staleness, self._iterations):
            leases = self._prompts.lease(self._num_prompts)
            groups = self._collector.groups_of(leases)
            self._ahead.append(_Ahead({lease.id for lease in leases}, Collected(), groups))
            self._workers.submit(leases)

    def attend(self) -> None:
        self._pump()

    def _pump(self) -> bool:
        """Submit finished rollouts for scoring, and take scores; return whether there were any of either."""
        restarts = self._workers.environment_restarts
        finished = self._workers.collect()
        has_news = [self._take(ahead, finished) for ahead in self._ahead]
        num_answered = self._collector.rewards.scoring().num_answered
        has_scores = num_answered > self._num_answered
        self._num_answered = num_answered
        if any(has_news) or has_scores:  # while any scores come, the time-out of the others starts anew
            for ahead in self._ahead:
                ahead.scoring.start_anew()
        if self._ahead:
            self._ahead[0].found.num_environment_restarts += self._workers.environment_restarts - restarts
        return bool(finished) or any(has_news)

    def _take(self, ahead: _Ahead, finished: Sequence[Rollout]) -> bool:
        """Take an iteration's finished rollouts and scores; return whether scores had come."""
        own = [rollout for rollout in finished if rollout.lease_id in ahead.missing]
        if own:
            self._collector.console.advance("rollout", len(own))
            ahead.missing -= {rollout.lease_id for rollout in own}
            if ready := ahead.groups.take(own) if ahead.groups else own:
                ahead.scoring.add(self._collector.begin(ready, ahead.found))
        done = ahead.scoring.take_done()
        for part in done:
            self._collector.take(part, ahead.found)
        return bool(done)

    def next(self, done: int) -> Collected:
        """Return the rollouts of the iteration after `done` ones; wait until all are scored.

        Raises:
            RewardError, InputError, EpisodeError, RunError: as in `Collector` and `expect_some`.
        """
        self._meter.begin()
        self.prepare(done)
        started, first = time.perf_counter(), self._ahead[0]
        for phase in ("rollout", "reward"):
            self._collector.console.phase(phase)
        waiting = self._begin_waiting()
        while not first.is_whole:
            self._collector.check_stop()
            if not first.missing and not first.found.rollout_s:
                first.found.rollout_s = time.perf_counter() - started
            if self._pump():
                waiting = self._begin_waiting()
            else:
                if waiting.is_due:
                    waiting.tell(self._missing(first))
                time.sleep(PAUSE_S)
        self._ahead.popleft()
        self._prompts.finish(self._num_prompts, first.found.rollouts)
        first.found.reward_s = time.perf_counter() - started - first.found.rollout_s
        _require_fresh(first.found.rollouts, done, self._max_staleness)
        return expect_some(first.found, self._collector.failures, done + 1)

    def _begin_waiting(self) -> Waiting:
        return Waiting(self._tell, NOTE_S, rarer=True)

    def _tell(self, text: str) -> None:
        """Tell what the run waits for; slow rollouts are a warning, slow scores are none."""
        if self._ahead[0].missing:
            self._collector.console.warn(text)
        else:
            self._collector.tell_of_scores(text)

    def _missing(self, ahead: _Ahead) -> str:
        if ahead.missing:
            return f"{len(ahead.missing)} rollouts of this iteration"
        return f"the scores of {ahead.scoring.num_rollouts} texts: {self._collector.rewards.scoring()}"

    def state(self) -> Mapping[str, Any]:
        """Return the prompts' state; a resumed run leases untrained iterations again."""
        return self._prompts.state()

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        """Return the workers' metrics over the whole iteration: they generate during all of it."""
        generated = sum(rollout.num_generated for rollout in batch.rollouts)
        throughput = {"throughput/generated_tokens_per_s": generated / iteration_s}
        return self._meter.info(iteration_s) | throughput | self._prompts.metrics()


def _require_fresh(rollouts: Sequence[Rollout], version: int, max_staleness: int) -> None:
    """Check that no token is newer than `version`, or more than `max_staleness` versions older.

    Raises:
        RunError: a worker wrote with weights that it should no longer have.
    """
    for rollout in rollouts:
        seen = [turn.oldest_and_newest for turn in rollout.turns if turn.num_tokens]
        oldest, newest = (
            min(seen, default=(version, version))[0],
            max((new for _, new in seen), default=version),
        )
        if not version - max_staleness <= oldest <= newest <= version:
            raise RunError(
                f"lease {rollout.lease_id} has tokens by weights of versions {oldest} to {newest}, and those "
                f"to train are of {version}; expected none newer, and none more than "
                f"rollout.max_staleness={max_staleness} versions older"
            )
