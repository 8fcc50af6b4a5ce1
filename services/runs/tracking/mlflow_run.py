"""Runs in MLflow: parameters, metrics, sample tables, artifacts, inputs. A resumed run continues its own."""

import contextlib
import logging
import os
import posixpath
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock

from services.runs.tracking.settings import TrackingSettings

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

START_S = 60.0  # the first start makes the database, which takes seconds on a slow machine
MAX_PARAMETER_LENGTH = 6000  # MLflow's limits
MAX_TAG_LENGTH = 5000
MAX_PARAMETERS_PER_BATCH = 100
MAX_METRICS_PER_BATCH = 1000
NO_SUCH_RUN = "RESOURCE_DOES_NOT_EXIST"  # the code of MLflow's error

Status = Literal["FINISHED", "FAILED", "KILLED"]


class MlflowRun:
    """Run in MLflow, open for writing. All calls wait for the server; `Tracker` makes them in a thread."""

    def __init__(self, client: "MlflowClient", run_id: str) -> None:
        self.client, self.run_id = client, run_id

    @classmethod
    def open(
        cls, settings: TrackingSettings, output_dir: Path, run_name: str, earlier: str | None
    ) -> "MlflowRun":
        """Make a run, or continue the run `earlier`, if the server still has it."""
        # Set these before the import reads them, unless the user did: no usage reports, no banner on the
        # console, and retries for seconds instead of many minutes when a server is gone.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow import MlflowClient

        with _making_the_database(settings, output_dir):
            client = MlflowClient(tracking_uri=uri_of(settings, output_dir))
        if earlier is not None and _go_on(client, earlier):
            return cls(client, earlier)
        experiment_id = _experiment_id(client, settings, output_dir)
        return cls(client, client.create_run(experiment_id, run_name=run_name).info.run_id)

    def parameters(self, texts: Mapping[str, str]) -> None:
        """Write parameters that the run lacks, because MLflow never changes one."""
        from mlflow.entities import Param

        there = self.client.get_run(self.run_id).data.params
        legal = {legal_name(key): _shortened(text) for key, text in texts.items()}
        new = [Param(key, value) for key, value in legal.items() if key not in there]
        for start in range(0, len(new), MAX_PARAMETERS_PER_BATCH):
            self.client.log_batch(self.run_id, params=new[start : start + MAX_PARAMETERS_PER_BATCH])

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Write the finite numbers of one step."""
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        points = [Metric(legal_name(key), value, now_ms, step) for key, value in values.items()]
        for start in range(0, len(points), MAX_METRICS_PER_BATCH):
            self.client.log_batch(self.run_id, metrics=points[start : start + MAX_METRICS_PER_BATCH])

    def samples(self, rows: Sequence[Mapping[str, Any]], step: int, split: str) -> None:
        """Add sample texts to the split's one table, because MLflow lists tables in a tag of 8000 letters."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        table: dict[str, list[Any]] = {"iteration": [step] * len(rows)}
        table |= {column: [row.get(column) for row in rows] for column in columns}
        self.client.log_table(self.run_id, table, artifact_file=f"samples/{split}.json")

    def artifact(self, path: Path) -> None:
        """Copy a file, or a folder with everything in it."""
        if path.is_dir():
            self.client.log_artifacts(self.run_id, str(path), path.name)
        else:
            self.client.log_artifact(self.run_id, str(path))

    def provenance(self, known: Mapping[str, Any]) -> None:
        """Write `services.runs.provenance` as tags and as the run's data set inputs.

        Commit and command get the names that MLflow's own page shows.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag

        tags = {"mlflow.source.name": known["command"], "mlflow.source.type": "JOB"}
        if known["commit"]:
            tags["mlflow.source.git.commit"] = known["commit"]
        tags |= {f"version.{package}": version for package, version in known["versions"].items()}
        self.tags(tags)
        inputs = [
            DatasetInput(
                Dataset(
                    name=Path(data["path"]).name,
                    digest=data["sha256"][:32],
                    source_type="local",
                    source=data["path"],
                ),
                tags=[InputTag("mlflow.data.context", data["split"])],
            )
            for data in known["data"]
        ]
        if inputs:
            self.client.log_inputs(self.run_id, inputs)

    def tags(self, texts: Mapping[str, str]) -> None:
        """Set tags; an existing tag gets the new text."""
        for key, text in texts.items():
            self.client.set_tag(self.run_id, key, text[:MAX_TAG_LENGTH])

    def close(self, status: Status) -> None:
        """End the run with a status."""
        self.client.set_terminated(self.run_id, status=status)


def uri_of(settings: TrackingSettings, output_dir: Path) -> str:
    """Return the address of MLflow's data: the setting, or a SQLite file in `output_dir`."""
    return settings.uri or f"sqlite:///{output_dir / 'mlflow.db'}"


@contextlib.contextmanager
def _making_the_database(settings: TrackingSettings, output_dir: Path) -> Iterator[None]:
    """Let one run at a time make the database, because MLflow fails if two make its tables at once."""
    if settings.uri is not None:
        yield
        return
    output_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(output_dir / ".mlflow.lock", timeout=START_S):
        yield


def _go_on(client: "MlflowClient", run_id: str) -> bool:
    """Reopen the run in a checkpoint; return False if the server lacks it or it was deleted.

    Raises:
        MlflowException: the server fails; it may still have the run.
    """
    from mlflow.exceptions import MlflowException

    try:
        state = client.get_run(run_id).info.lifecycle_stage
    except MlflowException as error:
        if error.error_code != NO_SUCH_RUN:
            raise
        state = "not known there"
    if state != "active":
        log.warning("MLflow no longer has run %s: it is %s; a new run begins", run_id, state)
        return False
    client.update_run(run_id, status="RUNNING")
    return True


def _experiment_id(client: "MlflowClient", settings: TrackingSettings, output_dir: Path) -> str:
    from mlflow.exceptions import MlflowException

    name = settings.experiment
    artifacts = (output_dir / "mlartifacts").as_uri() if settings.uri is None else None
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            created: str = client.create_experiment(name, artifact_location=artifacts)
            return created
        except MlflowException:  # another run made it between the two calls
            experiment = client.get_experiment_by_name(name)
    if experiment is None or experiment.lifecycle_stage == "deleted":
        raise RuntimeError(f"experiment {name!r} can't be used: deleted? Set tracking.experiment=")
    experiment_id: str = experiment.experiment_id
    return experiment_id


def legal_name(name: str) -> str:
    """Replace the characters that MLflow rejects in a name by underscores.

    >>> legal_name("reward/my.module:Reward/mean")
    'reward/my.module_Reward/mean'
    >>> legal_name("/loss//../policy(1)")
    'loss/policy_1_'
    """
    parts = re.sub(r"[^\w./\- ]", "_", name, flags=re.ASCII).split("/")
    return posixpath.join(*[part for part in parts if part not in ("", ".", "..")] or ["_"])


def _shortened(value: str) -> str:
    return value if len(value) <= MAX_PARAMETER_LENGTH else value[: MAX_PARAMETER_LENGTH - 1] + "…"
