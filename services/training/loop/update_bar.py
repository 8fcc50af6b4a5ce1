"""Show the learner's progress on the console, and run a callback at each step."""

from collections.abc import Callable

from services.runs.tracking.console import Console


class UpdateBar:
    """Progress bar of the learner's (phase, done, total) that calls `meanwhile` at each step."""

    def __init__(self, console: Console, meanwhile: Callable[[], None]) -> None:
        self._console, self._meanwhile = console, meanwhile
        self._scored = self._shown = 0
        console.phase("update")

    def __call__(self, phase: str, done: int, total: int) -> None:
        self._meanwhile()
        if phase != "update":
            self._console.advance(phase, max(0, done - self._scored))
            self._scored = done
            return
        if not self._shown:
            self._console.phase("update", total)
        self._console.advance("update", done - self._shown)
        self._shown = done
