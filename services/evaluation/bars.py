"""Progress bars of an evaluation, on standard error."""

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from services.tracking.console import Console


class Bars(Console):
    """Console with a bar for each phase, on standard error, since standard output is for the result."""

    def __init__(self) -> None:
        super().__init__(Terminal(stderr=True))
        self._bars = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.terminal,
            disable=not self.terminal.is_terminal,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}

    @property
    def shows_progress(self) -> bool:
        return self.terminal.is_terminal

    def phase(self, name: str, total: int | None = None) -> None:
        super().phase(name, total)
        self._bars.start()
        self._tasks[name] = self._bars.add_task(name, total=total)

    def advance(self, name: str, n: int = 1) -> None:
        super().advance(name, n)
        self._bars.advance(self._tasks[name], n)

    def stop(self) -> None:
        self._bars.stop()
