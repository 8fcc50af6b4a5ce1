"""Progress of a learner's calls, which another thread reads while they run."""

import contextlib
from collections.abc import Callable, Iterator

IDLE = "idle"


class Progress:
    """Phase of the current call, the number of finished sequences, and the number of all."""

    def __init__(self) -> None:
        self.now = (IDLE, 0, 1)

    def rest(self) -> None:
        """Record that no call runs."""
        self.now = (IDLE, 0, 1)

    def of(self, phase: str, total: int) -> Callable[[int], None]:
        """Return a function that records how many sequences of a phase are done."""

        def advance(done: int) -> None:
            self.now = (phase, done, total)

        return advance

    @contextlib.contextmanager
    def during(self, phase: str, total: int) -> Iterator[Callable[[int], None]]:
        """Yield such a function for a call with one phase."""
        try:
            yield self.of(phase, total)
        finally:
            self.rest()
