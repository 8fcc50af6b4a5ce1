"""Open calls of a door, and their limit."""

from collections.abc import Iterator
from contextlib import contextmanager

from rollout_workers.gateway.bodies import Refused


class OpenCalls:
    """Count of a door's calls while their bodies are read or they wait for answers.

    Args:
        most: limit of open calls.
        limit: the setting of `most`, for the message of a refusal.
    """

    def __init__(self, most: int, limit: str) -> None:
        self._most, self._limit = most, limit
        self.num = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count a call, from before its body is read until its answer.

        Raises:
            Refused: the limit is reached.
        """
        if self.num >= self._most:
            raise Refused(
                429, f"{self.num} calls are open, as many as {self._limit} allows", "too_many_calls"
            )
        self.num += 1
        try:
            yield
        finally:
            self.num -= 1
