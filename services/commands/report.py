"""`whetstone report RUN`: write report.html and learning_curves.png of a run."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from services.runs.nearby import run_at
from services.runs.report.report import write_report
from services.terminal.doing import doing


def run(argv: Sequence[str]) -> int:
    """Write the report, and print its path.

    Raises:
        InputError: RUN is not a run's folder; the message lists the runs nearby.
    """
    parser = argparse.ArgumentParser(
        prog="whetstone report", description="Write report.html and learning_curves.png of a run."
    )
    parser.add_argument("run", metavar="RUN", help="the run's folder, such as runs/NAME")
    folder = run_at(Path(parser.parse_args(argv).run))
    with doing("drawing the report"):
        page = write_report(folder)
    print(page)
    return 0
