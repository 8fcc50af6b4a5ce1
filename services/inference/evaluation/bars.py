"""Progress bars of an evaluation, on standard error."""

from services.runs.tracking.progress import Progress
from services.terminal.screens import Screen


class Bars(Progress):
    """Console with a bar for each phase, on standard error because standard output is for the result."""

    def __init__(self) -> None:
        super().__init__(Screen(stderr=True))

    @property
    def shows_progress(self) -> bool:
        return self.terminal.is_terminal
