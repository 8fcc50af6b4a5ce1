"""Progress of a parallel start, with a line for each part and no long silence."""

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from services.terminal.readable import duration

SILENCE_S = 10.0


class Starting:
    """Reporter of a start. While entered, it reports at least every `silence_s` seconds.

    Example: `with Starting(("the learner", "the worker"), say) as starting: …; starting.is_up("the learner")`
    may say `starting the learner and the worker …`, `starting the learner and the worker: 10 s so far`, `the
    learner took 12 s to start`
    """

    def __init__(
        self, parts: Sequence[str], say: Callable[[str], None], silence_s: float = SILENCE_S
    ) -> None:
        self._missing, self._say, self._silence_s = list(parts), say, silence_s
        self._began = self._told = time.monotonic()
        self._heard = ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._fill_silence, name="starting", daemon=True)

    def __enter__(self) -> "Starting":
        self._tell(f"{self._what} …")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def hear(self, text: str) -> None:
        """Take a part's note about its start; the next line shows it in brackets."""
        self._heard = text

    def is_up(self, part: str) -> None:
        """Report that a part is up, with the duration of its start."""
        self._heard = ""
        self._missing.remove(part)
        self._tell(f"{part} took {duration(time.monotonic() - self._began)} to start")
        if not self._missing:
            self._is_over.set()

    @property
    def _what(self) -> str:
        *others, last = self._missing
        return f"starting {', '.join(others)} and {last}" if others else f"starting {last}"

    def _tell(self, text: str) -> None:
        self._told = time.monotonic()
        self._say(text)

    def _fill_silence(self) -> None:
        while not self._is_over.wait(max(0.0, self._told + self._silence_s - time.monotonic())):
            if time.monotonic() - self._told >= self._silence_s:
                heard = f" ({self._heard})" if self._heard else ""
                self._heard = ""
                self._tell(f"{self._what}: {time.monotonic() - self._began:.0f} s so far{heard}")
