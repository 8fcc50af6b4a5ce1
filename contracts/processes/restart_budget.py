"""The number of workers or learners that a run may lose within an hour before it ends."""

import time
from collections import deque

from contracts.errors import RunError

LAPSE_S = 3600.0  # a loss counts for at least this time


class RestartBudget:
    """The losses of workers or learners that still count: those within an hour or in the current iteration.

    Args:
        limit: the largest number of losses that may count at a time.
        setting: the limit's name, for the message.
        error: the class of error that a loss beyond the limit raises.

    >>> budget = RestartBudget(2, "rollout.max_restarts")
    >>> [budget.spend("worker 0 died"), budget.spend("worker 1 died")]
    [1, 2]
    >>> budget.spend("worker 2 died")
    Traceback (most recent call last):
    contracts.errors.RunError: worker 2 died; that is loss 3 within an hour, and rollout.max_restarts=2
    """

    def __init__(self, limit: int, setting: str, error: type[RunError] = RunError) -> None:
        self.limit = limit
        self._setting, self._error = setting, error
        self._losses: deque[tuple[float, int | None]] = deque()  # time and iteration of each loss

    def spend(self, lost: object, iteration: int | None = None) -> int:
        """Count a loss; return the number of losses that count now.

        Args:
            lost: the event, in words.
            iteration: the run's iteration; the loss then counts at least until the run has passed it. None:
                the loss counts for an hour.

        Raises:
            RunError: more losses count than the limit allows; or the class in `error`.
        """
        now = time.monotonic()
        while self._losses and self._has_lapsed(self._losses[0], now, iteration):
            self._losses.popleft()
        self._losses.append((now, iteration))
        count = len(self._losses)
        if count > self.limit:
            raise self._error(
                f"{lost}; that is loss {count} within an hour, and {self._setting}={self.limit}"
            )
        return count

    def _has_lapsed(self, loss: tuple[float, int | None], now: float, iteration: int | None) -> bool:
        lost_at, lost_in = loss
        got_further = iteration is None or lost_in is None or lost_in < iteration
        return lost_at < now - LAPSE_S and got_further
