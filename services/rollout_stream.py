"""Rollouts that are made while the learner trains: whole iterations ahead, and never too far.

    iteration   1   2   3   4          with max_staleness=1, while the weights are of version 1 (one
    leased      ██  ██  ██             update is done): iteration 2 is being trained on, 3 being written
    trained on  ██  ░░

The rollouts of iteration i are leased when i - 1 - max_staleness updates are done, no sooner, and trained on
by update i: no token in them can be older than max_staleness versions. An iteration's leases are decided by
their order alone, so that long texts are not crowded out by short ones. With 0 nothing is written ahead.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.clients import FleetClient
from contracts.errors import RunError
from contracts.rollout import Rollout
from services.collecting import Collected, Collector, Patience, Pending, scores_of
from services.leasing import LeaseSource
from services.mixed_source import MixedSource

NOTE_S = 15.0  # without news, a person is told what is waited for
PAUSE_S = 0.02  # between two looks, where nothing has come


@dataclass(slots=True)
class _Ahead:
    """A coming iteration."""

    before: Mapping[str, Any]  # the source's state before it was leased
    missing: set[int]  # leases that are being written
    found: Collected
    scoring: list[Pending] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self.scoring


class RolloutStream:
    """Scored rollouts, an iteration at a time. Whoever waits for something else calls `pump` meanwhile."""

    def __init__(
        self,
        workers: FleetClient,
        source: LeaseSource | MixedSource,
        collector: Callable[[], Collector],
        *,
        prompts_per_iteration: int,
        max_staleness: int,
        iterations: int,
    ) -> None:
        self._workers, self._source, self._collector = workers, source, collector()
        self._per_iteration, self._max_staleness = prompts_per_iteration, max_staleness
        self._iterations = iterations
        self._ahead: deque[_Ahead] = deque()
        self._num_leased = 0  # iterations

    def restart(self, done: int) -> None:
        """Begin behind iteration `done`; what is under way is given up, and will be leased again."""
        if self._ahead:
            self._workers.cancel_all()
        self._ahead.clear()
        self._num_leased = done

    def fill(self, done: int) -> None:
        """Lease as far ahead as is allowed after `done` iterations."""
        while self._num_leased < min(done + 1 + self._max_staleness, self._iterations):
            before = self._source.state()
            leases = self._source.lease(self._per_iteration)
            found = Collected()
            if isinstance(self._source, MixedSource):
                found.from_data = self._source.rollouts(self._per_iteration)
            self._ahead.append(_Ahead(before, {lease.id for lease in leases}, found))
            self._workers.submit(leases)
            self._num_leased += 1

    def pump(self) -> bool:
        """Have what was written scored, and take what was scored. False: there was neither."""
        restarts = self._workers.environment_restarts
        finished = self._workers.collect()
        has_news = [self._take(ahead, finished) for ahead in self._ahead]
        if any(has_news):  # a queue that moves is no reason to lose patience with those behind
            for part in (part for ahead in self._ahead for part in ahead.scoring):
                part.since = time.monotonic()
        if self._ahead:
            self._ahead[0].found.num_environment_restarts += self._workers.environment_restarts - restarts
        return bool(finished) or any(has_news)

    def _take(self, ahead: _Ahead, finished: Sequence[Rollout]) -> bool:
        """True: some were scored."""
        own = [rollout for rollout in finished if rollout.lease_id in ahead.missing]
        if own:
            self._collector.console.advance("rollout", len(own))
            ahead.missing -= {rollout.lease_id for rollout in own}
            ahead.scoring.append(self._collector.begin(own, ahead.found))
        done = [part for part in ahead.scoring if part.is_done()]
        for part in done:
            self._collector.take(part, ahead.found)
            ahead.scoring.remove(part)
        return bool(done)

    def next(self, done: int) -> Collected:
        """The rollouts of the iteration after `done` ones; waits until all are scored.

        Raises:
            what `Collector` does
        """
        self.fill(done)
        started, first = time.perf_counter(), self._ahead[0]
        for phase in ("rollout", "reward"):
            self._collector.console.phase(phase)
        patience = Patience(self._collector.console, NOTE_S)
        while not first.is_whole:
            self._collector.check_stop()
            if not first.missing and not first.found.rollout_s:
                first.found.rollout_s = time.perf_counter() - started
            if self.pump():
                patience.begin_anew()
            else:
                patience.look(lambda: _missing(first))
                time.sleep(PAUSE_S)
        self._ahead.popleft()
        first.found.reward_s = time.perf_counter() - started - first.found.rollout_s
        _require_fresh(first.found.rollouts, done, self._max_staleness)
        return first.found

    def state(self) -> Mapping[str, Any]:
        """The source's, before what was leased and is not trained on: a resumed run leases it again."""
        return self._ahead[0].before if self._ahead else self._source.state()


def _missing(ahead: _Ahead) -> str:
    if ahead.missing:
        return f"{len(ahead.missing)} rollouts of this iteration"
    return scores_of(sum(len(part.rollouts) for part in ahead.scoring))


def _require_fresh(rollouts: Sequence[Rollout], version: int, max_staleness: int) -> None:
    """That the bound has held.

    Raises:
        RunError: it has not; a worker writes with weights that it should not have any more.
    """
    for rollout in rollouts:
        versions = [v for turn in rollout.turns for v in turn.weight_versions]
        if not all(version - max_staleness <= v <= version for v in versions):
            raise RunError(
                f"lease {rollout.lease_id} has tokens by weights of versions {min(versions)} to "
                f"{max(versions)}, and those to train are of {version}; expected none newer, and none more "
                f"than rollout.max_staleness={max_staleness} versions older"
            )
