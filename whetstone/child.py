"""Answer a caller's request in a separate process.

python -m whetstone.child train OVERRIDES           train with the objects that come through standard input
python -m whetstone.child run COMMAND …             any other command, likewise
python -m whetstone.child demo-model FOLDER         make the demo's model; the folder is JSON on the last line
"""

import contextlib
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whetstone.command import ANSWER
from whetstone.own_place import leave_users_folders_to_the_end


def main(argv: list[str]) -> int:
    leave_users_folders_to_the_end()
    from services.cli import ended

    question, *rest = argv
    if question == "demo-model":
        return ended(argv, lambda: _demo_model(Path(rest[0])), has_own_process=False)
    call = pickle.load(sys.stdin.buffer)  # only the process that started this one writes here
    words = argv if question == "train" else rest
    return ended(words, lambda: ANSWERS[question](rest, call), has_own_process=True)


def _train(_: list[str], call: dict[str, Any]) -> int:
    from contracts.objects import hold
    from whetstone.run_training import run_training

    objects = call["objects"]
    hold(objects.packed, {})
    code, folder = run_training(call["overrides"], objects)
    os.write(int(os.environ[ANSWER]), str(folder).encode())
    return code


def _run(words: list[str], call: dict[str, Any]) -> int:
    from contracts.objects import hold
    from services.cli import dispatch

    hold(call["objects"].packed, {})
    return dispatch(words)


def _demo_model(path: Path) -> int:
    """Make the demo's model in a folder; print the folder."""
    from services.training.train.demo import make_start_model

    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the answer alone
        make_start_model(path, seed=0)
    print(json.dumps(str(path)))
    return 0


ANSWERS: dict[str, Callable[[list[str], dict[str, Any]], int]] = {"train": _train, "run": _run}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
