"""Rich's console for texts of others: each character is shown, and none is a command or markup."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

from services.terminal.visible import visible


class Screen(Console):
    """Console that shows texts as they are: `[red]` and `:smile:` too, unless `markup=True` is given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Render what is printed. Rich's own commands, as of a live display, come in segments apart."""
        return super()._render_buffer(
            each if each.control else Segment(visible(each.text), each.style) for each in buffer
        )
