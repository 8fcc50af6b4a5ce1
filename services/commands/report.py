"""`whetstone report RUN`: write report.html and learning_curves.png of a run."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import InputError
from services.report.report import write_report
from services.runs.folder import RunFolder, is_run
from services.runs.nearby import no_run
from services.terminal.doing import doing


def run(argv: Sequence[str]) -> int:
    """Write the report, and print where it is.

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
