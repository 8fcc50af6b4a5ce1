"""Tracker of one run. It writes to MLflow and to the other trackers, each in its own thread."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat

from contracts.secrets.redaction import without_secrets
from contracts.secrets.secret_values import hide, hide_in
from services.runs.tracking.background import Background
from services.runs.tracking.mlflow_run import START_S, MlflowRun, Status, uri_of
from services.runs.tracking.settings import TrackingSettings
from services.runs.tracking.sinks import TITLES, Sink, open_sink


class Tracker:
    """Writer of one run to all its trackers. Only `run_id` and `finish` wait for them, with deadlines."""

    def __init__(
        self,
        settings: TrackingSettings,
        output_dir: Path,
        run_name: str,
        run_id: str | None,
        identity: str | None,
    ) -> None:
        self.settings = settings
        self.output_dir = output_dir.absolute()
        self.run_name = hide(run_name)
        self.on_metrics: Callable[[Mapping[str, Any], int], None] = lambda metrics, step: None
        self._run_id, self._identity = run_id, identity
        self._status: Status = "FINISHED"
        self._mlflow: Background[MlflowRun] = Background(
            f"MLflow at {self.uri}", self._open_mlflow, lambda run: run.close(self._status)
        )
        self._sinks = [self._sink(name) for name in settings.also] if settings.enabled else []

    @classmethod
    def start(
        cls,
        settings: TrackingSettings,
        output_dir: str | Path,
        run_name: str,
        run_id: str | None = None,
        *,
        identity: str | None = None,
        at_once: bool = True,
    ) -> "Tracker":
        """Begin tracking, or continue MLflow's run `run_id`. Returns before any tracker is imported.

        Args:
            identity: the run's id in trackers that take ours; None: they use the run's name and place.
            at_once: False: import and open trackers at `open` or at the end, and keep entries until then.
        """
        tracker = cls(settings, Path(output_dir), run_name, run_id, identity)
        if settings.enabled:
            tracker._mlflow.start(at_once=at_once)
        for sink in tracker._sinks:
            sink.start(at_once=at_once)
        return tracker

    def open(self) -> None:
        """Import and open the trackers, if that waited."""
        self._mlflow.open()
        for sink in self._sinks:
            sink.open()

    @property
    def uri(self) -> str:
        return uri_of(self.settings, self.output_dir)

    @property
    def run_id(self) -> str | None:
        """Return MLflow's id of the run, for a checkpoint; wait up to a minute for it. None without a run."""
        if self.settings.enabled:
            self._mlflow.wait_until_open(START_S)
        return self._run_id

    @property
    def num_failures(self) -> int:
        """Return the number of failed writes, over all trackers."""
        return self._mlflow.num_failures + sum(sink.num_failures for sink in self._sinks)

    def log_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Log flat parameters. MLflow keeps parameters from before a resume."""
        texts = {key: str(value) for key, value in without_secrets(parameters).items()}
        self._mlflow.add(lambda run: run.parameters(texts))
        self._to_sinks(lambda sink: sink.parameters(texts))

    def log_provenance(self, known: Mapping[str, Any]) -> None:
        """Log command, commit, versions and data files in MLflow."""
        shown = hide_in(dict(known))
        self._mlflow.add(lambda run: run.provenance(shown))

    def log_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of MLflow's run."""
        texts = {key: hide_in(text) for key, text in tags.items()}
        self._mlflow.add(lambda run: run.tags(texts))

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log the numbers of one step, except for None and NaN, which a chart can't show."""
        self.on_metrics(metrics, step)
        values = {key: float(value) for key, value in metrics.items() if _is_finite(value)}
        self._mlflow.add(lambda run: run.metrics(values, step))
        self._to_sinks(lambda sink: sink.metrics(values, step))

    def log_samples(self, rows: Sequence[Mapping[str, Any]], step: int, split: str) -> None:
        """Log an evaluation's sample texts with their step; MLflow has them in `samples/<split>.json`."""
        shown = [{key: hide_in(value) for key, value in row.items()} for row in rows]
        self._mlflow.add(lambda run: run.samples(shown, step, split))
        self._to_sinks(lambda sink: sink.samples(shown, step, split))

    def log_artifact(self, path: Path) -> None:
        """Copy a file or a folder into MLflow, in its state when the thread reaches it."""
        self._mlflow.add(lambda run: run.artifact(path))

    def finish(self, status: Status = "FINISHED", mlflow_s: float | None = None) -> None:
        """Write the pending jobs and close the run; wait at most half a minute for each tracker.

        Args:
            mlflow_s: seconds to wait for MLflow instead, for example to copy a model.
        """
        self._status = status
        self._mlflow.finish(mlflow_s)
        for sink in self._sinks:
            sink.finish()

    def _open_mlflow(self) -> MlflowRun:
        # A server that fails now may have the run at the next resume, so checkpoints keep its id.
        run = MlflowRun.open(self.settings, self.output_dir, self.run_name, self._run_id)
        self._run_id = run.run_id
        return run

    def _sink(self, name: str) -> Background[Sink]:
        return Background(
            TITLES[name],
            lambda: open_sink(name, self.settings, self.run_name, self.output_dir, self._identity),
            lambda sink: sink.close(self._status == "FINISHED"),
        )

    def _to_sinks(self, job: Callable[[Sink], None]) -> None:
        for sink in self._sinks:
            sink.add(job)


def _is_finite(value: Any) -> bool:
    return isinstance(value, SupportsFloat) and math.isfinite(float(value))
