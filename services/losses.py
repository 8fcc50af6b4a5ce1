"""How many learners a run may lose, and when another one would not help."""

import time
from collections import deque

from contracts.errors import LearnerFailed, LearnerLost, RunError

LAPSE_S = 3600.0  # a loss counts for so long at least


class Losses:
    """Of learners: within the last hour, or since the run got no further."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lost: deque[tuple[float, int]] = deque()  # when, and in which iteration
        self._failed_in: int | None = None  # the iteration in which a learner raised

    def count(self, lost: LearnerLost, iteration: int) -> str:
        """Take one down; returns the words for the next one.

        A learner that raises what nobody expected gets another try: its GPU, or its memory, may be to blame.
        One that raises in the same iteration once more is a mistake in the program, or in the user's class.

        Args:
            iteration: it was lost in.

        Raises:
            RunError: `learner.max_restarts` would be exceeded, or another has raised in this iteration.
        """
        if isinstance(lost, LearnerFailed):
            if self._failed_in == iteration:
                raise RunError(f"two learners raised in iteration {iteration}, and so would a third: {lost}")
            self._failed_in = iteration
        now = time.monotonic()
        while self._lost and self._lost[0][0] < now - LAPSE_S and self._lost[0][1] < iteration:
            self._lost.popleft()
        self._lost.append((now, iteration))
        count = len(self._lost)
        if count > self._limit:
            raise RunError(
                f"{lost}; that is loss {count} within an hour, and learner.max_restarts={self._limit}"
            )
        return f"replacement {count} of {self._limit}"
