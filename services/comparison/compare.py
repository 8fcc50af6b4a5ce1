"""`whetstone compare RUN RUN …`: one self-contained page about several runs.

folders ─▶ groups by seed ─▶ Page (curves, settings, differences, texts) ─▶ compare.html.j2 ─▶ comparison.html
"""

from collections.abc import Sequence
from pathlib import Path

from services import report
from services.comparison.groups import read_groups
from services.comparison.page import gather
from services.report.marked import breakable
from services.runs.folder import RunFolder
from services.runs.json_lines import write_atomically
from services.runs.standard_errors import CLEAR
from services.terminal.readable import number, with_error

NAME = "comparison.html"
NUM_COLOURS = 6  # groups that the page tells apart


def write_comparison(folders: Sequence[RunFolder], output: Path) -> Path:
    """Write the page about these runs.

    Raises:
        InputError: fewer than two runs were given, or a file can't be read.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    page = gather(read_groups(folders))
    places = [Path(__file__).parent, Path(report.__file__).parent]
    environment = Environment(
        loader=FileSystemLoader(places),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "breakable": breakable}
    html = environment.get_template("compare.html.j2").render(
        page=page, clear=CLEAR, with_error=with_error, num_colours=NUM_COLOURS
    )
    return write_atomically(output, html)
