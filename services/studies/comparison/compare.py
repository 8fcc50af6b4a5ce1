"""`whetstone compare RUN RUN …`: one self-contained page about several runs.

folders ─▶ groups by seed ─▶ Page (curves, settings, differences, texts) ─▶ compare.html.j2 ─▶ comparison.html
"""

from collections.abc import Sequence
from pathlib import Path

from services.runs import report
from services.runs.folder import RunFolder
from services.runs.json_lines import write_atomically
from services.runs.report.marked import breakable
from services.runs.standard_errors import CLEAR
from services.studies.comparison.groups import read_groups
from services.studies.comparison.page import gather
from services.terminal.readable import number, with_error
from services.terminal.templates import templates_in

NAME = "comparison.html"
NUM_COLOURS = 6  # groups that the page can distinguish


def write_comparison(folders: Sequence[RunFolder], output: Path) -> Path:
    """Write the page about these runs.

    Raises:
        InputError: fewer than two runs were given, or a file can't be read.
    """
    page = gather(read_groups(folders))
    environment = templates_in(
        Path(__file__).parent,
        Path(report.__file__).parent,
        filters={"number": number, "breakable": breakable},
    )
    html = environment.get_template("compare.html.j2").render(
        page=page, clear=CLEAR, with_error=with_error, num_colours=NUM_COLOURS
    )
    return write_atomically(output, html)
