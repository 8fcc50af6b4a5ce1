"""`whetstone report RUN`: what a run did, on one page that needs nothing beside it.

run's folder ──▶ Page (numbers, charts, samples, timings, tables) ──▶ report.html.j2 ──▶ report.html
                                                                └──▶ learning_curves.png
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from contracts.disk import room_for
from contracts.errors import InputError
from services.changes import in_words
from services.curves import draw_png
from services.doing import doing
from services.json_lines import write_atomically
from services.readable import duration, number
from services.run_folder import RunFolder, is_run
from services.run_page import gather
from services.standard_errors import CLEAR


def run(argv: Sequence[str]) -> int:
    """The command. Prints where the page is.

    Raises:
        InputError: RUN is no run's folder; the message lists the runs nearby.
    """
    parser = argparse.ArgumentParser(
        prog="whetstone report", description="Write report.html and learning_curves.png of a run."
    )
    parser.add_argument("run", metavar="RUN", help="the run's folder, such as runs/NAME")
    path = Path(parser.parse_args(argv).run)
    if not is_run(path):
        raise InputError(no_run(path))
    with doing("drawing the report"):
        page = write_report(RunFolder(path))
    print(page)
    return 0


def write_report(folder: RunFolder) -> Path:
    """Write report.html and learning_curves.png into the run's folder, of what there is so far."""
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
    environment.filters |= {"number": number, "duration": duration, "in_words": in_words}
    html = environment.get_template("report.html.j2").render(page=page, clear=CLEAR)
    return write_atomically(folder.report, html)


def no_run(path: Path) -> str:
    """What to say of a path that is no run's folder; names the runs nearby."""
    nearby = nearby_runs(path)
    reason = "there is no such folder" if not path.exists() else "it has no config.yaml, so it is no run"
    if not nearby:
        return f"{path}: {reason}, and there are no runs nearby. Give a run's folder: <output_dir>/<run_name>"
    listed = "\n".join(f"  {found}" for found in nearby)
    return f"{path}: {reason}. Runs nearby, newest first:\n{listed}"


def nearby_runs(path: Path, most: int = 10) -> list[Path]:
    """Runs in `path`, beside it, in the working folder and in its `runs`, newest first."""
    places = dict.fromkeys(
        place.absolute() for place in (path, path.parent, path.parent / "runs", Path(), Path("runs"))
    )
    found = {file.parent for place in places for file in place.glob("*/config.yaml")}
    newest_first = sorted(found, key=lambda folder: (folder / "config.yaml").stat().st_mtime, reverse=True)
    here = Path.cwd()
    return [run.relative_to(here) if run.is_relative_to(here) else run for run in newest_first[:most]]
