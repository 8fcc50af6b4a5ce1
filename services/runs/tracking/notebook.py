"""A run's screen in a notebook: one output, redrawn a few times a second."""

import io
import re
import sys
from collections.abc import Callable
from typing import Any

from rich.console import RenderableType

from services.terminal.screens import Screen

WIDTH, HEIGHT = 100, 34
PAGE = (
    "<style>.whetstone i {{display:inline-block; width:1ch; font-style:normal}}</style>"
    "<pre class='whetstone' style='font-family:monospace; line-height:1.25; font-size:13px; "
    "white-space:pre'>{code}</pre>"
)
BRAILLE = re.compile("[\u2800-\u28ff]")  # a browser may show these in a font of another width


def is_notebook() -> bool:
    """Return whether this process is a notebook's kernel, whose frontend shows HTML."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookScreen:
    """A screen with the methods of rich's `Live`."""

    def __init__(self, get_renderable: Callable[[], RenderableType]) -> None:
        self._get, self._handle = get_renderable, None

    @property
    def is_started(self) -> bool:
        return self._handle is not None

    def start(self, refresh: bool = True) -> None:
        from IPython.display import display

        self._handle = display(_page(self._get()), display_id=True)

    def refresh(self) -> None:
        if self._handle is not None:
            self._handle.update(_page(self._get()))

    def stop(self) -> None:
        self.refresh()


def _page(frame: RenderableType) -> Any:
    from IPython.display import HTML

    paper = Screen(
        width=WIDTH,
        height=HEIGHT,
        record=True,
        file=io.StringIO(),
        force_jupyter=False,
        color_system="truecolor",
    )
    paper.print(frame)
    page = paper.export_html(code_format=PAGE, inline_styles=True)
    return HTML(BRAILLE.sub(lambda dots: f"<i>{dots[0]}</i>", page))
