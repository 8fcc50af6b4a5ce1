"""A learner in a process of its own, which answers while its models load and while it computes."""

import os
from collections.abc import Callable
from typing import Any

from learner.learner import Learner

Progress = tuple[str, int, int]  # (phase, done, total)


class LearnerProcess:
    """What `learner/group.py` puts into a Ray actor: two calls at once, of which one is `progress`."""

    def __init__(self, make_learner: Callable[[], Learner]) -> None:
        self._make_learner = make_learner
        self._learner: Learner | None = None

    def start(self) -> None:
        """Load the models.

        Raises:
            InputError: the model can't be used.
        """
        self._learner = self._make_learner()

    def progress(self) -> Progress:
        return self._learner.progress() if self._learner else ("start", 0, 1)

    def pid(self) -> int:
        return os.getpid()

    def call(self, method: str, *arguments: Any) -> Any:
        """A method of the learner, once it has started."""
        return getattr(self._learner, method)(*arguments)
