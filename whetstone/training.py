"""Train with a reward that may be the caller's function."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whetstone.command import run_command
from whetstone.errors import InputError
from whetstone.functions import configured
from whetstone.overrides import words
from whetstone.runs import Run, is_run

CHILD = "whetstone.child"
FUNCTIONS = "functions"  # in a run's folder


def train(experiment: str | None = None, *, reward: Any = None, **overrides: Any) -> Run:
    """Train as `whetstone train` does, and wait for the end. The same call resumes a run that was stopped.

    Args:
        experiment: a name in `conf/experiment/`, or the path of your own YAML file.
        reward: the name of a reward, a function `def reward(samples) -> list[float]`, a class with such a
            method `score`, a mapping `{"name": …, "weight": …}` with one of these, or a list of all these.
        overrides: any keys of the configuration. Write a dot as `__`: `rollout__max_tokens=60`; or give the
            key as it is: `**{"rollout.max_tokens": 60}`.

    Example: `train("demo", model__path=demo_model(), reward=my_function, iterations=20)`

    Raises:
        InputError: an argument is wrong; nothing was started.
        RunError: the run failed.
        KeyboardInterrupt: the run was stopped, and has saved.
    """
    asked = words(({} if experiment is None else {"experiment": experiment}) | overrides)
    folder = Path(ask("folder", *asked, *_reward(configured(reward, None))))
    functions = folder / FUNCTIONS

    def write(name: str, text: str) -> Path:
        functions.mkdir(parents=True, exist_ok=True)
        (functions / name).write_text(text, encoding="utf-8")
        return functions / name

    try:
        run_command(["train", *asked, *_reward(configured(reward, write))])
    except InputError:
        if not is_run(folder):  # a run that was refused leaves nothing
            shutil.rmtree(functions, ignore_errors=True)
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        raise
    return Run(folder)


def demo_model(folder: str | os.PathLike[str] = "runs/demo-start-model") -> Path:
    """Make a model of 111 thousand parameters that writes rows of numbers, unless it is there."""
    return Path(ask("demo-model", os.fspath(folder)))


def ask(*question: str) -> str:
    """Ask `whetstone/child.py`, and return its answer."""
    printed = run_command(question, module=CHILD, show=False)
    answer: str = json.loads(printed.rstrip("\n").split("\n")[-1])
    return answer


def _reward(parts: Any) -> Sequence[str]:
    return [] if parts is None else words({"reward": parts})
