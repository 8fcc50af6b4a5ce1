"""No wait in silence: a line now and then of whatever takes long, and who is waited for."""

import time
from collections.abc import Callable, Sequence

NOTE_EVERY_S = 15.0
STARTS_S = 10.0  # where processes start and models load


class Waiting:
    """One wait, from now on.

    Args:
        note: is told.
        every_s: seconds without progress from one line to the next.
    """

    def __init__(self, note: Callable[[str], None], every_s: float | None = None) -> None:
        self._note, self._every_s = note, every_s or NOTE_EVERY_S
        self._since = self._told_at = time.monotonic()

    def progress(self, at: float | None = None) -> None:
        """Something came at that time, by `time.monotonic()`; by default now."""
        self._told_at = max(self._told_at, time.monotonic() if at is None else at)

    @property
    def is_due(self) -> bool:
        """Whether it is time for another line."""
        return time.monotonic() - self._told_at > self._every_s

    def tell(self, what: str, who: Sequence[str]) -> None:
        """Say `waiting 31 s for {what}: {who}`; nothing where nobody is waited for any more."""
        if not who:
            return
        self._told_at = time.monotonic()
        self._note(f"waiting {self._told_at - self._since:.0f} s for {what}: {'; '.join(who)}")
