"""Progress bars of an evaluation, on standard error."""

from rich.console import Console as Terminal

from services.tracking.progress import Progress


class Bars(Progress):
    """Console with a bar for each phase, on standard error, since standard output is for the result."""

    def __init__(self) -> None:
        super().__init__(Terminal(stderr=True))

    @property
    def shows_progress(self) -> bool:
        return self.terminal.is_terminal
