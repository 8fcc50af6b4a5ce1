"""Answer questions of a caller's process that no command answers; an answer is JSON on the last line.

python -m whetstone.child folder OVERRIDES      the folder that a run with these overrides has
python -m whetstone.child demo-model FOLDER     the folder, with the demo's model in it
"""

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from whetstone.own_place import leave_users_folders_to_the_end

EXIT_INPUT = 2


def main(argv: list[str]) -> int:
    leave_users_folders_to_the_end()
    from contracts.errors import InputError
    from contracts.secrets.output import guarded_output
    from contracts.secrets.redaction import remember_typed

    question, *rest = argv
    remember_typed(rest)
    with guarded_output():
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for the answer alone
                answer = QUESTIONS[question](rest)
        except InputError as error:
            print(f"whetstone: {error}", file=sys.stderr)
            return EXIT_INPUT
        print(json.dumps(str(answer)))
    return 0


def folder(overrides: list[str]) -> Path:
    """Return the folder of a run with these overrides; refuse one that holds something else."""
    from services.config.compose import run_settings
    from services.runs.claim import refuse_strangers

    settings = run_settings(overrides)
    path = Path(settings.output_dir).absolute() / settings.run_name
    refuse_strangers(path)
    return path


def demo_model(folders: list[str]) -> Path:
    """Make the demo's model in a folder, unless it is there; return the folder."""
    from services.train.demo import make_start_model

    (path,) = (Path(each) for each in folders)
    if not (path / "model.safetensors").exists():
        make_start_model(path, seed=0)
    return path


QUESTIONS: dict[str, Callable[[list[str]], Path]] = {"folder": folder, "demo-model": demo_model}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
