"""Leases to scored rollouts: texts are scored while others are still being written."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace

from contracts.clients import RewardClient, RolloutClient
from contracts.errors import DeadlineExceeded, RewardError
from contracts.rollout import Lease, Rollout
from contracts.scores import Sample, Score
from services.console import Console

FIRST_NOTE_S = 3.0  # scores take longer than that: a person should know what is waited for


@dataclass(slots=True)
class FailureBudget:
    """How many samples may go unscored in a whole run before it stops."""

    limit: int
    count: int = 0

    def spend(self, rollout: Rollout, error: str) -> None:
        """Count one.

        Raises:
            RewardError: the limit is passed; shows the sample.
        """
        self.count += 1
        if self.count > self.limit:
            raise RewardError(
                f"{self.count} samples could not be scored, more than "
                f"reward_servers.max_failures={self.limit}. "
                f"The last one, prompt {rollout.prompt.id}: {error}\n"
                f"prompt: {rollout.prompt.text!r}\ntext: {rollout.text!r}"
            )


@dataclass(slots=True)
class Collected:
    """Scored rollouts of some leases, and where the time went."""

    rollouts: list[Rollout] = field(default_factory=list)
    num_failed: int = 0
    rollout_s: float = 0.0  # until the last text was written
    reward_s: float = 0.0  # until the last score came, after that


@dataclass(frozen=True, slots=True)
class Collector:
    """Makes scored rollouts of leases; how long it may take, and who is told."""

    workers: RolloutClient
    rewards: RewardClient
    failures: FailureBudget
    console: Console
    check_stop: Callable[[], None]
    reward_timeout_s: float

    def __call__(self, leases: Sequence[Lease]) -> Collected:
        """Generate and score; a sample whose scoring failed is counted and left out.

        Raises:
            RewardError: too many failures, or a reward server that can't be reached.
        """
        result = Collected()
        self.console.phase("rollout", len(leases))
        self.console.phase("reward", len(leases))
        started = time.perf_counter()
        pending: list[tuple[list[Rollout], Future[list[Score]]]] = []
        for finished in self.workers.generate(leases):
            self.check_stop()
            if finished:
                self.console.advance("rollout", len(finished))
                pending.append((finished, self.rewards.submit([as_sample(rollout) for rollout in finished])))
        result.rollout_s = time.perf_counter() - started
        for finished, future in pending:
            for rollout, score in zip(
                finished, _scores(future, len(finished), self.reward_timeout_s, self.console), strict=True
            ):
                if score.total is None:
                    result.num_failed += 1
                    self.failures.spend(rollout, score.error or "no reason given")
                    self.console.note(f"prompt {rollout.prompt.id} was not scored: {score.error}", "warning")
                else:
                    result.rollouts.append(with_score(rollout, score))
            self.console.advance("reward", len(finished))
        result.reward_s = time.perf_counter() - started - result.rollout_s
        return result


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


def as_sample(rollout: Rollout) -> Sample:
    prompt = rollout.prompt
    return Sample(rollout.text, prompt.text, prompt.references, prompt.meta)


def with_score(rollout: Rollout, score: Score) -> Rollout:
    """The total stands at the end of the last turn, where the text is finished."""
    last = replace(rollout.turns[-1], reward=score.total)
    return replace(rollout, turns=(*rollout.turns[:-1], last), reward_parts=dict(score.parts))
