"""Rollouts that wait for their scores, with a time-out."""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from contracts.errors import DeadlineExceeded
from contracts.rollout import Rollout
from contracts.scores import Score


@dataclass(slots=True, eq=False)
class Pending:
    """Rollouts that wait for their scores."""

    rollouts: Sequence[Rollout]
    scores: Future[list[Score]]
    timeout_s: float
    since: float = field(default_factory=time.monotonic)

    def is_done(self, wait_s: float) -> bool:
        """Return whether all scores have come; wait up to `wait_s` seconds for them.

        Raises:
            DeadlineExceeded: the scores took longer than `timeout_s`.
        """
        if self.scores.done() or wait([self.scores], timeout=wait_s).done:
            return True
        self.check(self.since)
        return False

    def check(self, since: float) -> None:
        """Check that at most `timeout_s` seconds have passed since a time.

        Raises:
            DeadlineExceeded: more time has passed.
        """
        if time.monotonic() - since >= self.timeout_s:
            raise DeadlineExceeded(
                f"waited {self.timeout_s:.0f} s for scores; raise reward_servers.default.timeout_s"
            )


class PendingParts:
    """Parts of an iteration that wait for their scores, in the order of submission.

    Callbacks report finished parts, so a check costs no time for the parts that still wait.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Pending] = {}  # by number of the submission
        self._done: deque[int] = deque()  # numbers that the reward client's thread adds
        self._num_added = 0
        self._anew_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def num_rollouts(self) -> int:
        return sum(len(part.rollouts) for part in self._waiting.values())

    def add(self, part: Pending) -> None:
        number = self._num_added
        self._num_added += 1
        self._waiting[number] = part
        part.scores.add_done_callback(lambda _: self._done.append(number))

    def start_anew(self) -> None:
        """Restart the time-out of all parts."""
        self._anew_at = time.monotonic()

    def take_done(self) -> list[Pending]:
        """Take out the parts whose scores have come.

        Raises:
            DeadlineExceeded: the scores of another part took longer than its `timeout_s`.
        """
        done = sorted(self._done.popleft() for _ in range(len(self._done)))
        taken = [self._waiting.pop(number) for number in done]
        oldest = next(iter(self._waiting.values()), None)
        if oldest is not None:
            oldest.check(max(oldest.since, self._anew_at))
        return taken
