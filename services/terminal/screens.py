"""Rich's console for untrusted texts: it shows each character, and obeys no commands or markup."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

from services.terminal.visible import visible


class Screen(Console):
    """Console that shows texts literally, even `[red]` and `:smile:`, unless `markup=True`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Render the output. Rich's commands, for example of a live display, come in separate segments."""
        return super()._render_buffer(
            segment if segment.control else Segment(visible(segment.text), segment.style)
            for segment in buffer
        )
