"""A run's screen as a notebook's one output."""

from typing import Any

import pytest
from rich.text import Text

from services.runs.tracking import console, notebook
from services.runs.tracking.notebook import NotebookScreen


class Handle:
    def __init__(self) -> None:
        self.pages: list[str] = []

    def update(self, page: Any) -> None:
        self.pages.append(page.data)


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Handle:
    """Return the only output that is shown from here on."""
    shown = [Handle()]

    def display(page: Any, display_id: bool) -> Handle:
        handle = shown.pop()  # a second output is an error
        handle.update(page)
        return handle

    handle = shown[0]
    monkeypatch.setattr("IPython.display.display", display)
    return handle


def test_each_frame_replaces_the_one_before_and_dots_have_the_width_of_letters(handle: Handle) -> None:
    frames = iter([Text("a < b"), Text("⠁x")])
    screen = NotebookScreen(lambda: next(frames))
    screen.start()
    screen.refresh()
    assert "a &lt; b" in handle.pages[0] and "<i>⠁</i>x" in handle.pages[1]


def test_notes_before_the_first_iteration_are_in_the_same_output(
    handle: Handle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "is_notebook", lambda: True)
    shown = console.open_console()
    shown.note("starting Ray …")
    shown.start("small-steps", 20)
    shown.stop()
    assert "starting Ray …" in handle.pages[0]
    assert "small-steps" in handle.pages[-1] and "iteration 0/20" in handle.pages[-1]
    assert capsys.readouterr().out == ""
    assert notebook.is_notebook() is False  # here
