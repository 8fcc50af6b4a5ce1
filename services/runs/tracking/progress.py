"""Progress of a command: a line per epoch, and a bar on a terminal."""

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from services.runs.tracking.console import Console


class Progress(Console):
    """Console with a line per epoch, and on a terminal a bar for each phase."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(terminal)
        columns = (
            TextColumn("{task.description:<10}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bars = Bars(*columns, console=terminal, disable=not terminal.is_terminal, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def phase(self, name: str, total: int | None = None) -> None:
        super().phase(name, total)
        self._bars.start()
        if name in self._tasks:
            self._bars.remove_task(self._tasks[name])
        self._tasks[name] = self._bars.add_task(name, total=total)

    def advance(self, name: str, n: int = 1) -> None:
        super().advance(name, n)
        self._bars.advance(self._tasks[name], n)

    def stop(self) -> None:
        self._bars.stop()
