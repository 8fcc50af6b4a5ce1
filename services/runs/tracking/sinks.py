"""Trackers besides MLflow. Each has a file NAME_sink.py, imported if `tracking.also` names it."""

import importlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from services.runs.tracking.settings import TrackingSettings

# A tracker's name in `tracking.also`, and in messages.
TITLES = {"wandb": "Weights & Biases", "tensorboard": "TensorBoard", "trackio": "Trackio"}
PACKAGES = {"wandb": "wandb", "tensorboard": "tensorboardX", "trackio": "trackio"}


class Sink(Protocol):
    """Tracker of one run. Its calls may fail or hang, so `Background` makes them in a thread."""

    def parameters(self, texts: Mapping[str, str]) -> None: ...

    def metrics(self, values: Mapping[str, float], step: int) -> None: ...

    def samples(self, rows: Sequence[Mapping[str, Any]], step: int, split: str) -> None: ...

    def close(self, is_finished: bool) -> None:
        """End the run; False if it failed or was stopped."""


def open_sink(
    name: str, settings: TrackingSettings, run_name: str, output_dir: Path, identity: str | None
) -> Sink:
    """Begin a run in a tracker, or continue the run of this `identity` if the tracker can."""
    module = importlib.import_module(f"services.runs.tracking.{name}_sink")
    sink: Sink = module.open_run(settings, run_name, output_dir, identity)
    return sink


def missing_packages(names: Sequence[str]) -> list[str]:
    """Return the packages that the trackers `names` need and that are not installed.

    >>> missing_packages([])
    []
    """
    return [PACKAGES[name] for name in names if find_spec(PACKAGES[name]) is None]
