"""The example notebook runs from its first cell to its last in a folder of its own."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs/notebook.ipynb"


def read() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = [cell for cell in read().cells if cell.cell_type == "code"]
    assert cells and all(not cell.outputs and cell.execution_count is None for cell in cells)


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1500)
def test_every_cell_runs(tmp_path: Path) -> None:
    book = read()
    NotebookClient(book, timeout=1200, resources={"metadata": {"path": str(tmp_path)}}).execute()

    scored, trained, plotted, compared, generated = [c for c in book.cells if c.cell_type == "code"][3:]
    # 10 steps of 1, over 10; of steps of -8, 1 and 48 one counts, over 10
    shown = scored.outputs[-1].data["text/plain"]
    assert "1.0" in shown and "0.1" in shown
    (screen,) = [output.data["text/html"] for output in trained.outputs if "data" in output]
    assert "iteration 20/20" in screen and "small-steps" in screen  # in this process, and one output for all
    assert not any("iteration 1/20" in output.get("text", "") for output in trained.outputs)
    assert any("image/png" in output.get("data", {}) for output in plotted.outputs)
    assert compared.outputs[-1].data["text/plain"].count("\n") == 3  # a header; before, half-way, after
    assert len(eval(generated.outputs[-1].data["text/plain"])) == 4
    assert (tmp_path / "runs/small-steps/report.html").is_file()
