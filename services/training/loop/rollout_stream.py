"""Stream of whole iterations of rollouts, generated while the learner trains, within a bound.

    iteration   1   2   3   4          with max_staleness=1, after one update: the weights have version 1,
    leased      ██  ██  ██             the learner trains on iteration 2, and workers write iteration 3
    trained on  ██  ░░

The rollouts of iteration i are leased once i - 1 - max_staleness updates are done, and update i trains on
them. So no token is older than max_staleness versions. The order of prompts alone decides an iteration's
leases, so short texts can't displace long ones. With max_staleness=0 nothing is written ahead.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from contracts.errors import RunError
from contracts.processes.waiting import Waiting
from contracts.rollout import Rollout
from services.training.loop.batches import Generated
from services.training.loop.collecting import Collected, expect_some
from services.training.loop.pending import PendingParts
from services.training.loop.whole_groups import WholeGroups

NOTE_S = 15.0  # seconds without progress before the console says what the run waits for
PAUSE_S = 0.02  # seconds between two checks if nothing has come


@dataclass(slots=True)
class _Ahead:
    """Rollouts of a coming iteration."""

    missing: set[int]  # leases that are still being written
    collected: Collected
    groups: WholeGroups | None = None  # finished rollouts that wait for the rest of their group
    scoring: PendingParts = field(default_factory=PendingParts)

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self.scoring


@dataclass(eq=False)
class RolloutStream(Generated):
    """Source of scored rollouts, an iteration at a time. A caller that waits elsewhere calls `attend`."""

    _: KW_ONLY
    max_staleness: int
    iterations: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ahead: deque[_Ahead] = deque()
        self._num_answered = 0  # texts that the rewards had scored at the last check

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; drop rollouts in progress, and lease them again."""
        if self._ahead:
            self.workers.cancel_all()
        self._ahead.clear()
        self.prompts.restore(state)

    def prepare(self, done: int) -> None:
        """Lease as far ahead as `max_staleness` allows after `done` iterations."""
        while done + len(self._ahead) < min(done + 1 + self.max_staleness, self.iterations):
            leases = self.prompts.lease(self.num_prompts)
            groups = self.collector.groups_of(leases)
            self._ahead.append(_Ahead({lease.id for lease in leases}, Collected(), groups))
            self.workers.submit(leases)

    def attend(self) -> None:
        self._pump()

    def _pump(self) -> bool:
        """Submit finished rollouts for scoring, and take scores; return whether any came."""
        restarts = self.workers.environment_restarts
        finished = self.workers.collect()
        has_news = [self._take(ahead, finished) for ahead in self._ahead]
        num_answered = self.collector.rewards.scoring().num_answered
        has_scores = num_answered > self._num_answered
        self._num_answered = num_answered
        if any(has_news) or has_scores:  # each new score restarts the time-out of the others
            for ahead in self._ahead:
                ahead.scoring.start_anew()
        if self._ahead:
            self._ahead[0].collected.num_environment_restarts += self.workers.environment_restarts - restarts
        return bool(finished) or any(has_news)

    def _take(self, ahead: _Ahead, finished: Sequence[Rollout]) -> bool:
        """Take an iteration's finished rollouts and scores; return whether scores came."""
        expected = [rollout for rollout in finished if rollout.lease_id in ahead.missing]
        if expected:
            self.collector.console.advance("rollout", len(expected))
            ahead.missing -= {rollout.lease_id for rollout in expected}
            if ready := ahead.groups.take(expected) if ahead.groups else expected:
                ahead.scoring.add(self.collector.begin(ready, ahead.collected))
        done = ahead.scoring.take_done()
        for part in done:
            self.collector.take(part, ahead.collected)
        return bool(done)

    def next(self, done: int) -> Collected:
        """Return the rollouts of the iteration after `done` ones; wait until all are scored.

        Raises:
            RewardError, InputError, EpisodeError, RunError: as in `Collector` and `expect_some`.
        """
        self.meter.begin()
        self.prepare(done)
        started, first = time.perf_counter(), self._ahead[0]
        for phase in ("rollout", "reward"):
            self.collector.console.phase(phase)
        waiting = self._begin_waiting()
        while not first.is_whole:
            self.collector.check_stop()
            if not first.missing and not first.collected.rollout_s:
                first.collected.rollout_s = time.perf_counter() - started
            if self._pump():
                waiting = self._begin_waiting()
            else:
                if waiting.is_due:
                    waiting.tell(self._missing(first))
                time.sleep(PAUSE_S)
        self._ahead.popleft()
        self.prompts.finish(self.num_prompts, first.collected.rollouts)
        first.collected.reward_s = time.perf_counter() - started - first.collected.rollout_s
        require_fresh(first.collected.rollouts, done, self.max_staleness)
        return expect_some(first.collected, self.collector.failures, done + 1)

    def _begin_waiting(self) -> Waiting:
        return Waiting(self._tell, NOTE_S, rarer=True)

    def _tell(self, text: str) -> None:
        """Report the wait: a warning for slow rollouts, a note for slow scores."""
        if self._ahead[0].missing:
            self.collector.console.warn(text)
        else:
            self.collector.tell_of_scores(text)

    def _missing(self, ahead: _Ahead) -> str:
        if ahead.missing:
            return f"{len(ahead.missing)} rollouts of this iteration"
        return f"the scores of {ahead.scoring.num_rollouts} texts: {self.collector.rewards.scoring()}"

    def describe(self, batch: Collected, iteration_s: float) -> dict[str, float]:
        """Return the workers' metrics over the whole iteration, because they generate during all of it."""
        generated = sum(rollout.num_generated for rollout in batch.rollouts)
        throughput = {"throughput/generated_tokens_per_s": generated / iteration_s}
        return self.meter.info(iteration_s) | throughput | self.prompts.metrics()


def require_fresh(rollouts: Sequence[Rollout], version: int, max_staleness: int) -> None:
    """Check that no token is newer than `version`, or more than `max_staleness` versions older.

    Raises:
        RunError: a worker wrote with outdated weights.
    """
    for rollout in rollouts:
        seen = [turn.oldest_and_newest for turn in rollout.turns if turn.num_tokens]
        oldest, newest = (
            min(seen, default=(version, version))[0],
            max((new for _, new in seen), default=version),
        )
        if not version - max_staleness <= oldest <= newest <= version:
            raise RunError(
                f"lease {rollout.lease_id} has tokens by weights of versions {oldest} to {newest}, but those "
                f"to train are of {version}; expected none newer, and none more than "
                f"rollout.max_staleness={max_staleness} versions older"
            )
