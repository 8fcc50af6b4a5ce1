"""Train with rewards, tasks and other parts that may be the caller's own Python objects."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from whetstone.command import CHILD, EXIT_INTERRUPTED, run_command
from whetstone.here import run_here, why_not_here
from whetstone.objects import Objects, configured
from whetstone.overrides import words
from whetstone.run_training import run_training
from whetstone.runs import Run


def train(experiment: str | None = None, *, in_process: bool = True, **overrides: Any) -> Run:
    """Train as `whetstone train` does, and wait for the end. The same call resumes a stopped run.

    Args:
        experiment: a name in `conf/experiment/`, or the path of your own YAML file.
        in_process: run the training loop in this process, which saves the start of another one.
        overrides: any keys of the configuration. Write a dot as `__`: `rollout__max_tokens=60`; or give the
            key unchanged: `**{"rollout.max_tokens": 60}`. A reward, metric, task, environment or algorithm is
            a name, or a Python object: a callable, a class, or an instance. `task` and `data` may be rows: a
            list, a DataFrame, a `datasets.Dataset`, or a dict of these by split.

    Example: `train("demo", model__path=demo_model(), reward=my_function, iterations=20)`

    Raises:
        InputError: an argument is wrong; no run was started.
        RunError: the run failed.
        KeyboardInterrupt: the run was stopped, and has saved.
    """
    objects = Objects()
    named = {} if experiment is None else {"experiment": experiment}
    configuration = configured(named | overrides, objects)
    why = why_not_here() if in_process else ""
    if why:
        print(f"whetstone: training in another process: {why}", file=sys.stderr)
    if why or not in_process:
        return Run(_train_apart(configuration, objects))
    code, folder = run_here(
        ["train", *words(configuration)], objects, lambda: run_training(configuration, objects)
    )
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    return Run(folder)


def _train_apart(configuration: dict[str, Any], objects: Objects) -> Path:
    """Train in a separate process, which gets the objects through a pipe."""
    call = {"overrides": configuration, "objects": objects.for_others()}
    with _Answer() as answer:
        run_command(["train", *words(configuration)], module=CHILD, call=call, answer=answer.end)
        return Path(answer.read())


class _Answer:
    """A pipe from another process, whose standard output is for people."""

    def __enter__(self) -> "_Answer":
        self._reads, self.end = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._reads, self.end):
            os.close(end)

    def read(self) -> str:
        return os.read(self._reads, 1 << 16).decode()


def demo_model(folder: str | os.PathLike[str] = "runs/demo-start-model") -> Path:
    """Make a model of 111 thousand parameters that writes rows of numbers, unless it exists."""
    path = Path(folder)
    if not (path / "model.safetensors").exists():
        printed = run_command(["demo-model", os.fspath(folder)], module=CHILD, show=False)
        path = Path(json.loads(printed.rstrip("\n").split("\n")[-1]))
    return path
