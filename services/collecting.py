"""Leases to scored rollouts: texts are scored while others are still being written.

leases ─▶ workers ─┬─▶ finished ─▶ reward servers, if there are any ─▶ scored
                   └─▶ failed in their environment: counted, never scored, never trained on
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import islice

from contracts.clients import RewardClient, RolloutClient
from contracts.errors import DeadlineExceeded, RewardError
from contracts.rollout import FinishReason, Lease, Rollout
from contracts.scores import Score
from services.console import Console
from services.judging import AT_THE_END, Judging

FIRST_NOTE_S = 3.0  # scores take longer than that: a person should know what is waited for


@dataclass(slots=True)
class FailureBudget:
    """How many rollouts may be lost in a whole run before it stops: unscored, or failed in their world."""

    limit: int
    count: int = 0

    def spend(self, rollout: Rollout, what: str) -> None:
        """Count one; `what` befell it, such as "was not scored: no reason given".

        Raises:
            RewardError: the limit is passed; shows the sample.
        """
        self.count += 1
        if self.count > self.limit:
            raise RewardError(
                f"{self.count} rollouts were lost, more than reward_servers.max_failures={self.limit}. "
                f"The last one, prompt {rollout.prompt.id}, {what}\n"
                f"prompt: {rollout.prompt.text!r}\ntext: {rollout.text!r}"
            )


@dataclass(slots=True)
class Collected:
    """Scored rollouts of some leases, what was lost, and where the time went."""

    rollouts: list[Rollout] = field(default_factory=list)
    num_failed: int = 0  # not scored
    rollout_s: float = 0.0  # until the last text was written
    reward_s: float = 0.0  # until the last score came, after that
    num_environment_failed: int = 0  # not played to their end
    last_failure: str = ""  # why the last of them was lost
    num_environment_restarts: int = 0  # environments that died or hung, and were replaced


@dataclass(frozen=True, slots=True)
class Collector:
    """Makes scored rollouts of leases; how long it may take, who judges, and who is told."""

    workers: RolloutClient
    rewards: RewardClient
    failures: FailureBudget
    console: Console
    check_stop: Callable[[], None]
    reward_timeout_s: float
    judging: Judging = AT_THE_END

    def __call__(self, leases: Sequence[Lease]) -> Collected:
        """Generate and score; a rollout that failed, or whose scoring did, is counted and left out.

        Raises:
            RewardError: too many failures, or a reward server that can't be reached.
        """
        result = Collected()
        self.console.phase("rollout", len(leases))
        self.console.phase("reward", len(leases))
        started, restarts = time.perf_counter(), self._restarts()
        pending: list[tuple[list[Rollout], Future[list[Score]]]] = []
        for finished in self.workers.generate(leases):
            self.check_stop()
            if finished:
                self.console.advance("rollout", len(finished))
                played = [rollout for rollout in finished if self._was_played(rollout, result)]
                pending.append((played, self._submit(played)))
        result.rollout_s = time.perf_counter() - started
        result.num_environment_restarts = self._restarts() - restarts
        for played, future in pending:
            self._take(played, future, result)
        result.reward_s = time.perf_counter() - started - result.rollout_s
        return result

    def _was_played(self, rollout: Rollout, result: Collected) -> bool:
        """Whether it reached an end; else it has a hole, and is counted."""
        if rollout.finish_reason is not FinishReason.FAILED:
            return True
        what = f"failed in environment={self.judging.environment}: {rollout.error or 'no reason given'}"
        result.num_environment_failed += 1
        self._lose(rollout, what, result)
        self.console.advance("reward")
        return False

    def _submit(self, rollouts: Sequence[Rollout]) -> Future[list[Score]]:
        """All their samples at once; where nothing is to be judged, nobody is asked."""
        samples = [sample for rollout in rollouts for sample in self.judging.samples(rollout)]
        if samples:
            return self.rewards.submit(samples)
        nothing: Future[list[Score]] = Future()
        nothing.set_result([])
        return nothing

    def _take(self, rollouts: Sequence[Rollout], future: Future[list[Score]], result: Collected) -> None:
        """Give every rollout its scores."""
        scores = iter(_scores(future, len(rollouts), self.reward_timeout_s, self.console))
        for rollout in rollouts:
            own = list(islice(scores, len(self.judging.samples(rollout))))
            unscored = next((score for score in own if score.total is None), None)
            if unscored is None:
                result.rollouts.append(self.judging.scored(rollout, own))
                continue
            result.num_failed += 1
            self._lose(rollout, f"was not scored: {unscored.error or 'no reason given'}", result)
        self.console.advance("reward", len(rollouts))

    def _lose(self, rollout: Rollout, what: str, result: Collected) -> None:
        result.last_failure = f"prompt {rollout.prompt.id} {what}"
        self.failures.spend(rollout, what)
        self.console.note(result.last_failure, "warning")

    def _restarts(self) -> int:
        return int(getattr(self.workers, "environment_restarts", 0))


def _scores(future: Future[list[Score]], num_texts: int, timeout_s: float, console: Console) -> list[Score]:
    """Wait for scores, and say so after a while and then more and more rarely."""
    waited_s, pause_s = 0.0, FIRST_NOTE_S
    while not wait([future], timeout=min(pause_s, timeout_s - waited_s)).done:
        waited_s += pause_s
        if waited_s >= timeout_s:
            raise DeadlineExceeded(
                f"waited {timeout_s:.0f} s for scores; reward_servers.default.timeout_s= allows for more"
            )
        console.note(
            f"waiting {waited_s:.0f} s for the scores of {num_texts} texts: "
            "a reward server is slow, or died and is being replaced",
            "warning",
        )
        pause_s = waited_s
    return future.result()
