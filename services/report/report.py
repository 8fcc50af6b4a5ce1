"""`whetstone report RUN`: one self-contained page about a run.

run's folder ──▶ Page (numbers, charts, samples, timings, tables) ──▶ report.html.j2 ──▶ report.html
                                                                └──▶ learning_curves.png
"""

from pathlib import Path

from contracts.processes.disk import room_for
from services.report.curves import draw_png
from services.report.marked import breakable
from services.report.run_page import gather
from services.runs.changes import in_words
from services.runs.folder import RunFolder
from services.runs.json_lines import write_atomically
from services.runs.standard_errors import CLEAR
from services.terminal.readable import duration, number


def write_report(folder: RunFolder) -> Path:
    """Write report.html and learning_curves.png into the run's folder, from its results so far."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    page, all_panels = gather(folder)
    if all_panels:
        with room_for(folder.curves):
            draw_png(all_panels, folder.curves, page.title)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "duration": duration,
        "in_words": in_words,
        "breakable": breakable,
    }
    html = environment.get_template("report.html.j2").render(page=page, clear=CLEAR)
    return write_atomically(folder.report, html)
