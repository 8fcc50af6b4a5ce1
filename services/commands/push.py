"""`whetstone push RUN NAME`: publish a run's model with a card about it."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from services.inference.publishing.publish import is_folder_name, model_of, to_folder, to_hub
from services.runs.nearby import run_at
from services.terminal.doing import doing

MERGE = "merge=true"


def run(argv: Sequence[str]) -> int:
    """Publish the model, and print its place.

    Raises:
        InputError: RUN is not a run's folder, or NAME can't be written.
    """
    parser = argparse.ArgumentParser(
        prog="whetstone push",
        description="Publish a run's model with a card about it, on the Hugging Face hub or in a folder.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's folder, such as runs/NAME")
    parser.add_argument("name", metavar="NAME", help="USER/MODEL on the hub, or a folder such as ./out")
    parser.add_argument(
        "merge",
        nargs="?",
        choices=[MERGE],
        help="the whole model of a run with an adapter; else the adapter alone",
    )
    parser.add_argument("--best", action="store_true", help="best_model/ in place of model/")
    parser.add_argument("--private", action="store_true", help="make a new repository on the hub private")
    options = parser.parse_args(argv)
    folder = run_at(Path(options.run))
    model = model_of(folder, options.best, merged=options.merge == MERGE)
    if is_folder_name(options.name):
        print(to_folder(folder, model, Path(options.name)))
        return 0
    with doing(f"uploading {model}"):
        address = to_hub(folder, model, options.name, options.private)
    print(address)
    return 0
