"""How many learners a run may lose, and when another one would not help."""

import time
from collections import deque

from contracts.errors import LearnerFailed, LearnerLost, RunError

LAPSE_S = 3600.0  # a loss counts for so long


class Losses:
    """Of learners, within the last hour."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._at: deque[float] = deque()
        self._failed: tuple[int, str] | None = None  # in which iteration a learner raised what

    def count(self, lost: LearnerLost, iteration: int) -> str:
        """Take one down; returns the words for the next one.

        A learner that raises what nobody expected gets another try: its GPU, or its memory, may be to blame.
        The same in the same iteration once more is a mistake in the program, or in the user's class.

        Args:
            iteration: it was lost in.

        Raises:
            RunError: `learner.max_restarts` would be exceeded, or the same has happened before.
        """
        if isinstance(lost, LearnerFailed):
            failed = iteration, str(lost).partition("\n")[0]
            if failed == self._failed:
                raise RunError(f"iteration {iteration} failed in two learners in the same way: {lost}")
            self._failed = failed
        now = time.monotonic()
        self._at.append(now)
        while self._at[0] < now - LAPSE_S:
            self._at.popleft()
        found = f"loss {len(self._at)} within an hour"
        if len(self._at) > self._limit:
            raise RunError(f"{lost}; that is {found}, and learner.max_restarts={self._limit}")
        return f"replacement {len(self._at)} of {self._limit}"
