"""Progress lines for long waits: the awaited event, the missing processes, and the time so far."""

import time
from collections.abc import Callable, Sequence

NOTE_EVERY_S = 15.0
STARTS_S = 10.0  # while processes start and models load


class Waiting:
    """A wait that begins now.

    Args:
        note: called with each line.
        every_s: seconds without progress before the next line.
        rarer: if True, the next line comes when the wait has lasted twice as long as now.
        say: called with a line in place of `note` while the awaited work makes progress.
    """

    def __init__(
        self,
        note: Callable[[str], None],
        every_s: float | None = None,
        *,
        rarer: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._note, self._say = note, say or note
        self._every_s, self._rarer = every_s or NOTE_EVERY_S, rarer
        self._since = time.monotonic()
        self._due_at = self._since + self._every_s

    def progress(self, at: float | None = None) -> None:
        """Restart the pause before the next line at the time `at` of `time.monotonic()`; None: now."""
        self._due_at = max(self._due_at, (time.monotonic() if at is None else at) + self._every_s)

    @property
    def is_due(self) -> bool:
        """Return whether it is time for another line."""
        return time.monotonic() > self._due_at

    def tell(self, what: str, who: Sequence[str] | None = None, *, gets_on: bool = False) -> None:
        """Say `waiting 31 s for {what}: {who}`; say nothing if nothing is missing.

        Args:
            who: names of the missing; None if `what` names them.
            gets_on: whether all make progress, so that no warning is needed.
        """
        if who is not None and not who:
            return
        now = time.monotonic()
        self._due_at = 2 * self._due_at - self._since if self._rarer else now + self._every_s
        line = f"waiting {now - self._since:.0f} s for {what}" + (f": {'; '.join(who)}" if who else "")
        (self._say if gets_on else self._note)(line)
