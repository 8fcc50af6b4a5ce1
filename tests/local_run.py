"""`whetstone train` in this very process: the loop, an engine, a learner and graders, without Ray."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as Terminal

from contracts.errors import InputError
from contracts.settings import build
from services.config.settings import RunSettings
from services.runs.folder import RunFolder
from services.runs.tracking.console import Console
from services.runs.tracking.tracker import Tracker
from services.runs.uploads import Uploads
from services.terminal.interrupts import StopRequest
from services.training.preflight import preflight
from services.training.sources.annotated_data import with_iterations
from services.training.train.here import LocalLearner, LocalWorkers, service_here
from services.training.train.loop import controller
from services.training.train.train import open_folder

__all__ = ["LocalLearner", "LocalWorkers", "small_run", "told_at_start", "train_here"]


def new_screen() -> io.StringIO:
    """Return what a run writes its lines into; a test that reads them replaces this function."""
    return io.StringIO()


def train_here(settings: RunSettings) -> RunFolder:
    """A whole run, its checks included."""
    preflight.check(settings)
    settings = with_iterations(settings)
    console = Console(Terminal(file=new_screen()))
    folder, mirror = open_folder(settings, console)
    tracker = Tracker.start(settings.tracking, settings.output_dir, settings.run_name)
    uploads = Uploads(mirror, folder, console.note) if mirror else None
    with service_here(settings) as clients:
        controller(settings, clients, folder, tracker, console, StopRequest(), uploads).run()
    if uploads:
        assert uploads.finish() is None
    return folder


def small_run(path: Path, output: Path, **parts: Any) -> RunSettings:
    """A run of the tests on a tiny model, without evaluations and checkpoints on its way."""
    whole = {
        "model": {"path": str(path)},
        "output_dir": str(output),
        "run_name": "run",
        "evaluate_every": 0,
        "save_every": 0,
        "evaluation": {"num_prompts": 2},
        "learner": {"device": "cpu", "num_threads": 1},
        "tracking": {"enabled": False},
        **parts,
    }
    drawn = {"max_tokens": 4, "engine": "transformers", "kv_cache_gib": 0.01}
    return build(RunSettings, {**whole, "rollout": {**drawn, **parts.get("rollout", {})}}, where="")


def told_at_start(run: RunSettings) -> str:
    """The reason for which a run is refused."""
    with pytest.raises(InputError) as caught:
        preflight.check(run)
    return str(caught.value)
