"""A learner in a process of its own, which answers while its models load and while it computes."""

import os
from collections.abc import Callable
from typing import Any

from contracts.output import guard_process, redacted_errors
from learner.learner import Learner

Progress = tuple[str, int, int]  # (phase, done, total)
CALLS_AT_ONCE = 3  # an update, all of the weights for who comes late, and how far it is


class LearnerProcess:
    """What `learner/group.py` puts into a Ray actor of `CALLS_AT_ONCE`."""

    def __init__(self, make_learner: Callable[[], Learner]) -> None:
        guard_process()
        self._make_learner = make_learner
        self._learner: Learner | None = None
        self._doing = "idle"

    def start(self) -> None:
        """Load the models.

        Raises:
            InputError: the model can't be used.
        """
        with redacted_errors():
            self._learner = self._make_learner()

    def progress(self) -> Progress:
        """An update's own; of anything else what it is."""
        if self._learner is None:
            return "start", 0, 1
        said = self._learner.progress()
        return (self._doing, 0, 1) if said[0] == "idle" else said

    def pid(self) -> int:
        return os.getpid()

    def call(self, method: str, *arguments: Any) -> Any:
        """A method of the learner, once it has started."""
        self._doing = "idle" if method == "update" else method
        try:
            with redacted_errors():
                return getattr(self._learner, method)(*arguments)
        finally:
            self._doing = "idle"

    def call_apart(self, method: str, *arguments: Any) -> tuple[None, Any]:
        """The same, and what tells its end without the result, which may be large."""
        return None, self.call(method, *arguments)
