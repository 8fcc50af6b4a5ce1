"""Turn leases into scored rollouts. Score finished texts while workers write others.

leases ─▶ workers ─┬─▶ finished ─▶ reward servers, if there are any ─▶ scored
                   └─▶ failed in their environment: counted, never scored, never trained on

A reward of whole groups gets a prompt's texts when the last one is finished.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice

from contracts.clients import LearnerClient, RewardClient, RolloutClient
from contracts.errors import EpisodeError, InputError, RewardError, RunError, WhetstoneError
from contracts.processes import timeline
from contracts.processes.waiting import Waiting
from contracts.rollout import FinishReason, Lease, Rollout
from contracts.scores import Score
from services.config.reward_view import AT_THE_END, Judging
from services.runs.tracking.console import Console
from services.training.loop.early_scoring import EarlyScoring
from services.training.loop.pending import Pending
from services.training.loop.whole_groups import WholeGroups

LOOK_S = 0.1  # time to wait in one check for scores
FIRST_NOTE_S = 3.0  # time without scores before the console says what the run waits for


@dataclass(slots=True)
class FailureBudget:
    """Budget of rollouts that a run may lose, because they were not scored or not played to the end."""

    max_unscored: int
    max_unplayed: int
    num_unscored: int = 0
    num_unplayed: int = 0
    last: WhetstoneError | None = None  # reason of the last loss

    def spend_unscored(self, rollout: Rollout, reason: str | None) -> None:
        """Count a rollout without a score.

        Raises:
            RewardError: the limit is exceeded; the message shows the sample.
        """
        self.num_unscored += 1
        message = f"prompt {rollout.prompt.id} was not scored: {reason or 'no reason given'}"
        self.last = RewardError(message)
        if self.num_unscored > self.max_unscored:
            raise RewardError(
                f"{self.num_unscored} rollouts were lost, more than reward_servers.max_failures="
                f"{self.max_unscored}. The last error: {message}\n"
                f"prompt: {rollout.prompt.text!r}\ntext: {rollout.text!r}"
            )

    def spend_unplayed(self, rollout: Rollout, environment: str | None) -> None:
        """Count a rollout whose environment failed.

        Raises:
            InputError: the limit is exceeded, for a reason that the user can fix.
            EpisodeError: the limit is exceeded for another reason.
        """
        self.num_unplayed += 1
        error = rollout.error or EpisodeError("no reason given")
        message = f"prompt {rollout.prompt.id} failed in environment={environment}: {error}"
        self.last = type(error)(message)
        if self.num_unplayed > self.max_unplayed:
            raise type(error)(
                f"{self.num_unplayed} episodes were lost, more than environment.max_failures="
                f"{self.max_unplayed}. The last error: {message}"
            )

    def nothing_left(self, message: str) -> WhetstoneError:
        """Return the error for a batch without rollouts: an InputError if the last loss was one."""
        kind = InputError if isinstance(self.last, InputError) else RunError
        return kind(f"{message}. The last error: {self.last}" if self.last else message)


@dataclass(slots=True)
class Collected:
    """Scored rollouts of some leases, counts of lost rollouts, and times."""

    rollouts: list[Rollout] = field(default_factory=list)
    from_data: list[Rollout] = field(default_factory=list)  # rollouts of a data set, mixed into the batch
    num_failed: int = 0  # rollouts without a score
    rollout_s: float = 0.0  # time until the last text was written
    reward_s: float = 0.0  # time from then until the last score came
    num_environment_failed: int = 0  # rollouts not played to their end
    num_environment_restarts: int = 0  # environments that died or hung, and were replaced

    def add(self, other: "Collected") -> None:
        """Add the results of a further round."""
        self.rollouts += other.rollouts
        self.from_data += other.from_data
        self.num_failed += other.num_failed
        self.rollout_s += other.rollout_s
        self.reward_s += other.reward_s
        self.num_environment_failed += other.num_environment_failed
        self.num_environment_restarts += other.num_environment_restarts

    @property
    def batch(self) -> list[Rollout]:
        """All rollouts that an update trains on."""
        return [*self.rollouts, *self.from_data]


def expect_some(collected: Collected, failures: FailureBudget, iteration: int) -> Collected:
    """Return the collected rollouts of an iteration, if at least one is left.

    Raises:
        RunError: every rollout was lost.
        InputError: every rollout was lost, for a reason that the user can fix.
    """
    if collected.rollouts:
        return collected
    what = "played to an end" if collected.num_environment_failed else "scored"
    num_lost = collected.num_failed + collected.num_environment_failed
    raise failures.nothing_left(f"iteration {iteration}: none of {num_lost} rollouts could be {what}")


@dataclass(frozen=True, slots=True)
class Collector:
    """Function that turns leases into scored rollouts, within a failure budget and a time-out."""

    workers: RolloutClient
    rewards: RewardClient
    failures: FailureBudget
    console: Console
    check_stop: Callable[[], None]
    reward_timeout_s: float
    judging: Judging = AT_THE_END
    early_scorer: LearnerClient | None = None  # scores finished rollouts while others are written
    on_episodes: Callable[[Sequence[Rollout], str], None] | None = (
        None  # gets scored episodes, and their split
    )

    def __call__(self, leases: Sequence[Lease]) -> Collected:
        """Generate and score; leave out and count rollouts that failed or could not be scored.

        Raises:
            RewardError: too many rollouts are not scored, or a reward server can't be reached.
            InputError: too many episodes failed, the last one for a reason that the user can fix.
            EpisodeError: too many episodes failed for other reasons.
        """
        result = Collected()
        self.console.phase("rollout", len(leases))
        self.console.phase("reward", len(leases))
        started, restarts = time.perf_counter(), self.workers.environment_restarts
        pending: list[Pending] = []
        groups, early = self.groups_of(leases), EarlyScoring(self.early_scorer, len(leases))
        with timeline.span("waits for rollouts"):
            for finished in self.workers.generate(leases):
                self.check_stop()
                if finished:
                    self.console.advance("rollout", len(finished))
                    if ready := groups.take(finished) if groups else finished:
                        pending.append(self.begin(ready, result))
                        early.offer(pending[-1].rollouts)
                early.offer()
        result.rollout_s = time.perf_counter() - started
        result.num_environment_restarts = self.workers.environment_restarts - restarts
        with timeline.span("waits for rewards"):
            for part in pending:
                self._await(part)
                self.take(part, result)
        result.reward_s = time.perf_counter() - started - result.rollout_s
        return result

    def groups_of(self, leases: Sequence[Lease]) -> WholeGroups | None:
        """Return a queue of unfinished groups; None if no reward needs whole groups."""
        return WholeGroups(leases) if self.judging.whole_groups else None

    def _await(self, part: Pending) -> None:
        """Wait for the scores of a part. Each new score restarts its time-out."""
        part.since = time.monotonic()  # start the time-out now, because only scores are missing
        waiting, before = Waiting(self.tell_of_scores, FIRST_NOTE_S, rarer=True), self.rewards.scoring()
        while not part.is_done(wait_s=min(LOOK_S, FIRST_NOTE_S)):
            self.check_stop()
            now = self.rewards.scoring()
            if now.num_answered > before.num_answered:
                part.since, before = time.monotonic(), now
            if waiting.is_due:
                waiting.tell(f"the scores of {len(part.rollouts)} texts: {now}")

    def tell_of_scores(self, text: str) -> None:
        """Report the wait: as a warning if a reward server lost a process, otherwise as a note."""
        self.console.note(text, "warning" if self.rewards.scoring().lost else "info")

    def begin(self, finished: Sequence[Rollout], result: Collected) -> Pending:
        """Submit completely played rollouts for scoring; count the others."""
        played = [rollout for rollout in finished if self._was_played(rollout, result)]
        return Pending(played, self._submit(played), self.reward_timeout_s)

    def _was_played(self, rollout: Rollout, result: Collected) -> bool:
        """Return whether the rollout was played to its end; count it if not."""
        if rollout.finish_reason is not FinishReason.FAILED:
            return True
        result.num_environment_failed += 1
        self.failures.spend_unplayed(rollout, self.judging.environment)
        self.console.note(str(self.failures.last), "warning")
        self.console.advance("reward")
        return False

    def _submit(self, rollouts: Sequence[Rollout]) -> Future[list[Score]]:
        """Submit all samples at once; without samples, call no server."""
        samples = [sample for rollout in rollouts for sample in self.judging.samples(rollout)]
        if samples:
            return self.rewards.submit(samples)
        nothing: Future[list[Score]] = Future()
        nothing.set_result([])
        return nothing

    def take(self, part: Pending, result: Collected) -> None:
        """Give every rollout of a finished part its scores; count rollouts without one."""
        scores, num_before = iter(part.scores.result()), len(result.rollouts)
        for rollout in part.rollouts:
            of_rollout = list(islice(scores, self.judging.num_samples(rollout)))
            unscored = next((score for score in of_rollout if score.total is None), None)
            if unscored is None:
                result.rollouts.append(self.judging.scored(rollout, of_rollout))
                continue
            result.num_failed += 1
            self.failures.spend_unscored(rollout, unscored.error)
            self.console.note(str(self.failures.last), "warning")
        if self.on_episodes is not None:
            self.on_episodes(result.rollouts[num_before:], self.judging.split)
        self.console.advance("reward", len(part.rollouts))
