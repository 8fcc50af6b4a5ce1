"""Leases to scored rollouts: texts are scored while others are still being written.

leases ─▶ workers ─┬─▶ finished ─▶ reward servers, if there are any ─▶ scored
                   └─▶ failed in their environment: counted, never scored, never trained on
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from contracts.clients import RewardClient, RolloutClient
from contracts.errors import DeadlineExceeded, EpisodeError, InputError, RewardError, RunError, WhetstoneError
from contracts.rollout import FinishReason, Lease, Rollout
from contracts.scores import Score
from services.console import Console
from services.judging import AT_THE_END, Judging

LOOK_S = 0.1  # how long one look for scores waits
FIRST_NOTE_S = 3.0  # scores take longer than that: a person should know what is waited for


@dataclass(slots=True)
class FailureBudget:
    """How many rollouts a whole run may lose before it stops: not scored, or not played to their end."""

    max_unscored: int
    max_unplayed: int
    num_unscored: int = 0
    num_unplayed: int = 0
    last: WhetstoneError | None = None  # what befell the last of them

    def spend_unscored(self, rollout: Rollout, reason: str | None) -> None:
        """Count one that has no score.

        Raises:
            RewardError: the limit is passed; shows the sample.
        """
        self.num_unscored += 1
        said = f"prompt {rollout.prompt.id} was not scored: {reason or 'no reason given'}"
        self.last = RewardError(said)
        if self.num_unscored > self.max_unscored:
            raise RewardError(
                f"{self.num_unscored} rollouts were lost, more than reward_servers.max_failures="
                f"{self.max_unscored}. The last one: {said}\n"
                f"prompt: {rollout.prompt.text!r}\ntext: {rollout.text!r}"
            )

    def spend_unplayed(self, rollout: Rollout, environment: str | None) -> None:
        """Count one that its environment failed.

        Raises:
            InputError: the limit is passed, by something that the user can mend.
            EpisodeError: the limit is passed otherwise.
        """
        self.num_unplayed += 1
        error = rollout.error or EpisodeError("no reason given")
        said = f"prompt {rollout.prompt.id} failed in environment={environment}: {error}"
        self.last = type(error)(said)
        if self.num_unplayed > self.max_unplayed:
            raise type(error)(
                f"{self.num_unplayed} episodes were lost, more than environment.max_failures="
                f"{self.max_unplayed}. The last one: {said}"
            )

    def nothing_left(self, said: str) -> WhetstoneError:
        """What to raise where every rollout was lost: the input's fault if the last one was."""
        kind = InputError if isinstance(self.last, InputError) else RunError
        return kind(f"{said}. The last one: {self.last}" if self.last else said)


@dataclass(slots=True)
class Collected:
    """Scored rollouts of some leases, what was lost, and where the time went."""

    rollouts: list[Rollout] = field(default_factory=list)
    from_data: list[Rollout] = field(default_factory=list)  # a data set's, mixed into the batch
    num_failed: int = 0  # not scored
    rollout_s: float = 0.0  # until the last text was written
    reward_s: float = 0.0  # until the last score came, after that
    num_environment_failed: int = 0  # not played to their end
    num_environment_restarts: int = 0  # environments that died or hung, and were replaced


@dataclass(slots=True)
class Pending:
    """Rollouts whose scores are on their way."""

    rollouts: Sequence[Rollout]
    scores: Future[list[Score]]
    timeout_s: float
    since: float = field(default_factory=time.monotonic)

    def is_done(self, wait_s: float = 0.0) -> bool:
        """Whether they are there, now or within `wait_s`.

        Raises:
            DeadlineExceeded: they should be by now.
        """
        if wait([self.scores], timeout=wait_s).done:
            return True
        if time.monotonic() - self.since >= self.timeout_s:
            raise DeadlineExceeded(
                f"waited {self.timeout_s:.0f} s for scores; reward_servers.default.timeout_s= allows for more"
            )
        return False


class Patience:
    """Says what is waited for after a while, and then more and more rarely."""

    def __init__(self, console: Console, first_note_s: float) -> None:
        self._console, self._first_note_s = console, first_note_s
        self.begin_anew()

    def begin_anew(self) -> None:
        """Something came."""
        self._since, self._noted_s = time.monotonic(), self._first_note_s

    def look(self, what: Callable[[], str]) -> None:
        waited_s = time.monotonic() - self._since
        if waited_s >= self._noted_s:
            self._console.note(f"waiting {waited_s:.0f} s for {what()}", "warning")
            self._noted_s *= 2


def scores_of(num_texts: int) -> str:
    return f"the scores of {num_texts} texts: a reward server is slow, or died and is being replaced"


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
            RewardError: too many are not scored, or a reward server can't be reached.
            InputError: too many episodes fail, and the last one by what the user can mend.
            EpisodeError: too many fail otherwise.
        """
        result = Collected()
        self.console.phase("rollout", len(leases))
        self.console.phase("reward", len(leases))
        started, restarts = time.perf_counter(), self.workers.environment_restarts
        pending: list[Pending] = []
        for finished in self.workers.generate(leases):
            self.check_stop()
            if finished:
                self.console.advance("rollout", len(finished))
                pending.append(self.begin(finished, result))
        result.rollout_s = time.perf_counter() - started
        result.num_environment_restarts = self.workers.environment_restarts - restarts
        for part in pending:
            part.since = time.monotonic()  # patience begins where nothing else is left to do
            patience = Patience(self.console, FIRST_NOTE_S)
            while not part.is_done(wait_s=min(LOOK_S, FIRST_NOTE_S)):
                patience.look(partial(scores_of, len(part.rollouts)))
            self.take(part, result)
        result.reward_s = time.perf_counter() - started - result.rollout_s
        return result

    def begin(self, finished: Sequence[Rollout], result: Collected) -> Pending:
        """Have those that were played to an end scored; the others are counted."""
        played = [rollout for rollout in finished if self._was_played(rollout, result)]
        return Pending(played, self._submit(played), self.reward_timeout_s)

    def _was_played(self, rollout: Rollout, result: Collected) -> bool:
        """Whether it reached an end; else it has a hole, and is counted."""
        if rollout.finish_reason is not FinishReason.FAILED:
            return True
        result.num_environment_failed += 1
        self.failures.spend_unplayed(rollout, self.judging.environment)
        self.console.note(str(self.failures.last), "warning")
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

    def take(self, part: Pending, result: Collected) -> None:
        """Give every rollout its scores, which are there."""
        scores = iter(part.scores.result())
        for rollout in part.rollouts:
            own = list(islice(scores, len(self.judging.samples(rollout))))
            unscored = next((score for score in own if score.total is None), None)
            if unscored is None:
                result.rollouts.append(self.judging.scored(rollout, own))
                continue
            result.num_failed += 1
            self.failures.spend_unscored(rollout, unscored.error)
            self.console.note(str(self.failures.last), "warning")
        self.console.advance("reward", len(part.rollouts))
