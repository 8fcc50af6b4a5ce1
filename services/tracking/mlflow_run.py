"""Tracking in MLflow: parameters, metrics, sample tables, artifacts; a resumed run continues its MLflow run.

    caller ──▶ queue (bounded) ──▶ one thread: import MLflow, open the run, then write one job after another

Tracking must never stop or slow a run. So only `run_id` and `finish` wait for MLflow, both with a deadline.
A failed job is counted, reported once and dropped: the JSON Lines files in the run's folder hold the same
numbers.
"""

import contextlib
import logging
import math
import os
import posixpath
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat

from filelock import FileLock

from contracts.redaction import without_secrets
from contracts.secret_values import hide, hide_in
from services.tracking.settings import TrackingSettings

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

MAX_PENDING = 1000  # jobs; with one per iteration, reached only when the server hangs for long
START_S = 60.0  # the first start makes the database: some seconds on a slow machine
FINISH_S = 30.0
MAX_PARAMETER_LENGTH = 6000  # MLflow's limits
MAX_PARAMETERS_PER_BATCH = 100
MAX_METRICS_PER_BATCH = 1000

Status = Literal["FINISHED", "FAILED", "KILLED"]
Job = Callable[["MlflowClient", str], None]  # called with the client and the run's id


class Tracker:
    """Writer of one run to MLflow, with its own thread. Only `run_id` and `finish` wait for it."""

    def __init__(self, settings: TrackingSettings, output_dir: Path, run_name: str, run_id: str | None):
        self.settings = settings
        self.output_dir = output_dir.absolute()
        self.run_name = hide(run_name)
        self.num_failures = 0
        self._run_id = run_id
        self.on_metrics: Callable[[Mapping[str, Any], int], None] = lambda metrics, step: None
        self._jobs: queue.Queue[Job | None] = queue.Queue(MAX_PENDING)
        self._opened = threading.Event()
        self._status: Status = "FINISHED"
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)

    @classmethod
    def start(
        cls, settings: TrackingSettings, output_dir: str | Path, run_name: str, run_id: str | None = None
    ) -> "Tracker":
        """Begin tracking, or go on with the run `run_id`. Returns before MLflow is imported."""
        tracker = cls(settings, Path(output_dir), run_name, run_id)
        if settings.enabled:
            tracker._thread.start()
        return tracker

    @property
    def uri(self) -> str:
        return self.settings.uri or f"sqlite:///{self.output_dir / 'mlflow.db'}"

    @property
    def run_id(self) -> str | None:
        """Return MLflow's id of the run, for a checkpoint; wait for it up to a minute. None without a run."""
        if self.settings.enabled:
            self._opened.wait(START_S)
        return self._run_id

    def log_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Log flat parameters. Those from before a resume stay: MLflow never changes one."""
        shown = without_secrets(parameters)
        texts = {legal_name(key): _shortened(str(value)) for key, value in shown.items()}
        self._add(lambda client, run_id: _write_parameters(client, run_id, texts))

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log the numbers of one step, except for None and NaN, which a chart can't show."""
        self.on_metrics(metrics, step)
        now_ms = int(time.time() * 1000)
        values = {legal_name(key): float(value) for key, value in metrics.items() if _is_finite(value)}
        self._add(lambda client, run_id: _write_metrics(client, run_id, values, step, now_ms))

    def log_samples(self, rows: Sequence[Mapping[str, Any]], step: int, split: str) -> None:
        """Add sample texts with their step to the split's table `samples/<split>.json`."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        table: dict[str, list[Any]] = {"iteration": [step] * len(rows)}
        table |= {column: [hide_in(row.get(column)) for row in rows] for column in columns}
        # One growing table: MLflow lists tables in a tag of 8000 letters, too short for one per evaluation.
        self._add(
            lambda client, run_id: client.log_table(run_id, table, artifact_file=f"samples/{split}.json")
        )

    def log_artifact(self, path: Path) -> None:
        """Log a file, or a folder with everything in it, in its state when the thread reaches it."""
        if path.is_dir():
            self._add(lambda client, run_id: client.log_artifacts(run_id, str(path), path.name))
        else:
            self._add(lambda client, run_id: client.log_artifact(run_id, str(path)))

    def finish(self, status: Status = "FINISHED") -> None:
        """Write the pending jobs and close the run; wait half a minute at most."""
        if not self._thread.is_alive():
            return
        self._status = status
        deadline = time.monotonic() + FINISH_S
        with contextlib.suppress(queue.Full):
            self._jobs.put(None, timeout=FINISH_S)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            log.warning(
                "MLflow at %s did not take the last of the run within %.0f s; the run's folder has it all",
                self.uri,
                FINISH_S,
            )

    def _add(self, job: Job) -> None:
        if not self._thread.is_alive():
            return
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self._fail(f"{MAX_PENDING} entries wait to be written")

    def _work(self) -> None:
        """Run the thread: open the run, write jobs until `finish` queues None, close the run."""
        try:
            client = self._open()
        except Exception as error:  # the run goes on, whatever MLflow or its server raises
            self._fail(f"{type(error).__name__}: {error}")
            return
        finally:
            self._opened.set()
        while (job := self._jobs.get()) is not None:
            self._try(job, client)
        self._try(lambda client, run_id: client.set_terminated(run_id, status=self._status), client)

    def _open(self) -> "MlflowClient":
        # Set before the import reads them, and only if the user did not: no usage reports, no banner on the
        # console, and retries for seconds instead of many minutes when a server is gone.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow import MlflowClient

        with self._making_the_database():
            client = MlflowClient(tracking_uri=self.uri)
        earlier, self._run_id = self._run_id, None
        if earlier is not None and self._go_on(client, earlier):
            self._run_id = earlier
        else:
            experiment_id = self._experiment_id(client)
            self._run_id = client.create_run(experiment_id, run_name=self.run_name).info.run_id
        return client

    @contextlib.contextmanager
    def _making_the_database(self) -> Iterator[None]:
        """Let one run at a time make the database: MLflow fails when two make its tables at once."""
        if self.settings.uri is not None:
            yield
            return
        self.output_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(self.output_dir / ".mlflow.lock", timeout=START_S):
            yield

    def _go_on(self, client: "MlflowClient", run_id: str) -> bool:
        """Reopen the run that a checkpoint names, if the server still has it."""
        from mlflow.exceptions import MlflowException

        try:
            client.update_run(run_id, status="RUNNING")
        except MlflowException as error:
            log.warning("MLflow at %s has no run %s (%s); a new one begins", self.uri, run_id, error)
            return False
        return True

    def _experiment_id(self, client: "MlflowClient") -> str:
        from mlflow.exceptions import MlflowException

        name = self.settings.experiment
        artifacts = (self.output_dir / "mlartifacts").as_uri() if self.settings.uri is None else None
        found = client.get_experiment_by_name(name)
        if found is None:
            try:
                created: str = client.create_experiment(name, artifact_location=artifacts)
                return created
            except MlflowException:  # another run made it between the two calls
                found = client.get_experiment_by_name(name)
        if found is None or found.lifecycle_stage == "deleted":
            raise RuntimeError(f"experiment {name!r} can't be used: deleted? Set tracking.experiment=")
        experiment_id: str = found.experiment_id
        return experiment_id

    def _try(self, job: Job, client: "MlflowClient") -> None:
        assert self._run_id is not None
        try:
            job(client, self._run_id)
        except Exception as error:  # a full disk or a lost server must not end the run
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        self.num_failures += 1
        if self.num_failures == 1:
            said = reason.strip().split("\n")[0]  # without the SQL that follows
            log.warning("MLflow at %s fails, the run goes on without it: %s", self.uri, said)


def legal_name(name: str) -> str:
    """Replace the characters that MLflow refuses in a name by underscores.

    >>> legal_name("reward/my.module:Reward/mean")
    'reward/my.module_Reward/mean'
    >>> legal_name("/loss//../policy(1)")
    'loss/policy_1_'
    """
    parts = re.sub(r"[^\w./\- ]", "_", name, flags=re.ASCII).split("/")
    return posixpath.join(*[part for part in parts if part not in ("", ".", "..")] or ["_"])


def _shortened(value: str) -> str:
    return value if len(value) <= MAX_PARAMETER_LENGTH else value[: MAX_PARAMETER_LENGTH - 1] + "…"


def _is_finite(value: Any) -> bool:
    return isinstance(value, SupportsFloat) and math.isfinite(float(value))


def _write_parameters(client: "MlflowClient", run_id: str, texts: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    there = client.get_run(run_id).data.params
    new = [Param(key, value) for key, value in texts.items() if key not in there]
    for start in range(0, len(new), MAX_PARAMETERS_PER_BATCH):
        client.log_batch(run_id, params=new[start : start + MAX_PARAMETERS_PER_BATCH])


def _write_metrics(
    client: "MlflowClient", run_id: str, values: Mapping[str, float], step: int, now_ms: int
) -> None:
    from mlflow.entities import Metric

    points = [Metric(key, value, now_ms, step) for key, value in values.items()]
    for start in range(0, len(points), MAX_METRICS_PER_BATCH):
        client.log_batch(run_id, metrics=points[start : start + MAX_METRICS_PER_BATCH])
