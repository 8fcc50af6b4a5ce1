"""`whetstone compare RUN RUN …`: write one page about several runs."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import InputError
from services.runs.nearby import run_at
from services.studies.comparison.compare import NAME, write_comparison
from services.terminal.doing import doing


def run(argv: Sequence[str]) -> int:
    """Write the page, and print its path.

    Raises:
        InputError: a folder is not a run's, or the page can't be written.
    """
    parser = argparse.ArgumentParser(
        prog="whetstone compare",
        description="Write one page about several runs: curves, settings that differ, evaluations, samples. "
        "Runs that differ only in their seed are drawn as one, with a band.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, such as runs/NAME")
    parser.add_argument("--output", metavar="FILE", help=f"default: {NAME} beside the first run")
    arguments = parser.parse_args(argv)
    runs = [run_at(Path(path)) for path in arguments.runs]
    output = Path(arguments.output) if arguments.output else runs[0].path.absolute().parent / NAME
    if output.is_dir() or not os.access(output.absolute().parent, os.W_OK):
        raise InputError(f"--output {output}: is a folder, or its folder can't be written; expected a file")
    with doing("drawing the comparison"):
        page = write_comparison(runs, output)
    print(page)
    return 0
