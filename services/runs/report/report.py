"""`whetstone report RUN`: one self-contained page about a run.

run's folder ──▶ Page (numbers, charts, samples, timings, tables) ──▶ report.html.j2 ──▶ report.html
                                                                └──▶ learning_curves.png
"""

from pathlib import Path

from contracts.processes.disk import room_for
from services.runs.changes import in_words
from services.runs.folder import RunFolder
from services.runs.json_lines import write_atomically
from services.runs.report.curves import draw_png
from services.runs.report.marked import breakable
from services.runs.report.run_page import gather
from services.runs.standard_errors import CLEAR
from services.terminal.readable import duration, number
from services.terminal.templates import templates_in


def write_report(folder: RunFolder) -> Path:
    """Write report.html and learning_curves.png into the run's folder, from its results so far."""
    page, all_panels = gather(folder)
    if all_panels:
        with room_for(folder.curves):
            draw_png(all_panels, folder.curves, page.title)
    environment = templates_in(
        Path(__file__).parent,
        filters={"number": number, "duration": duration, "in_words": in_words, "breakable": breakable},
    )
    html = environment.get_template("report.html.j2").render(page=page, clear=CLEAR)
    return write_atomically(folder.report, html)
