"""Tracking, on a real MLflow with a SQLite file: what arrives, what a resume keeps, what failures cost."""

import json
import math
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.runs.tracking import background, mlflow_run
from services.runs.tracking.settings import TrackingSettings
from services.runs.tracking.tracker import Tracker
from tests.free_ports import free_port


@pytest.fixture(scope="module")
def output_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One database for all tests: making it takes seconds."""
    return tmp_path_factory.mktemp("tracked")


@pytest.fixture
def tracker(output_dir: Path) -> Iterator[Tracker]:
    started = Tracker.start(TrackingSettings(), output_dir, "numbers")
    yield started
    started.finish()


def client_of(tracker: Tracker):  # type: ignore[no-untyped-def]
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracker.uri)


def test_what_is_logged_arrives(tracker: Tracker, output_dir: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text("<p>")
    tracker.log_parameters({"seed": 1, "prompt": "x" * 9000})
    tracker.log_metrics({"reward/mean": 0.25, "kl/mean": 0.0}, step=1)
    tracker.log_metrics({"reward/mean": 0.5}, step=2)
    tracker.log_samples([{"prompt_text": "3 5", "reward": 0.1}], step=0, split="val")
    tracker.log_samples([{"prompt_text": "3 5", "reward": 0.5}, {"prompt_text": "1"}], step=2, split="val")
    tracker.log_artifact(report)
    tracker.finish()

    client = client_of(tracker)
    run = client.get_run(tracker.run_id)
    assert tracker.num_failures == 0
    assert (output_dir / "mlflow.db").exists()
    assert run.info.run_name == "numbers"
    assert run.info.status == "FINISHED"
    assert run.data.params["seed"] == "1"
    assert len(run.data.params["prompt"]) == mlflow_run.MAX_PARAMETER_LENGTH
    history = client.get_metric_history(tracker.run_id, "reward/mean")
    assert [(point.step, point.value) for point in history] == [(1, 0.25), (2, 0.5)]
    artifacts = output_dir / "mlartifacts" / str(tracker.run_id) / "artifacts"
    assert (artifacts / "report.html").read_text() == "<p>"
    table = json.loads((artifacts / "samples" / "val.json").read_text())
    assert table["columns"] == ["iteration", "prompt_text", "reward"]
    assert table["data"] == [[0, "3 5", 0.1], [2, "3 5", 0.5], [2, "1", None]]
    assert "samples/val.json" in run.data.tags["mlflow.loggedArtifacts"]


def test_a_run_in_mlflow_has_commit_command_versions_and_data(tracker: Tracker) -> None:
    data = {"split": "train", "path": "/data/train.jsonl", "sha256": "9c" * 32}
    known = {
        **{"command": "whetstone train task=prompts", "commit": "1f" * 20, "changed": False},
        **{"python": "3.11.9", "versions": {"torch": "2.13.0"}, "data": [data]},
    }
    tracker.log_provenance(known)
    tracker.finish()

    assert tracker.num_failures == 0
    run = client_of(tracker).get_run(tracker.run_id)
    assert run.data.tags["mlflow.source.git.commit"] == "1f" * 20
    assert run.data.tags["mlflow.source.name"] == "whetstone train task=prompts"
    assert run.data.tags["version.torch"] == "2.13.0"
    (dataset_input,) = run.inputs.dataset_inputs
    assert (dataset_input.dataset.name, dataset_input.dataset.source) == ("train.jsonl", "/data/train.jsonl")
    assert dataset_input.dataset.digest == data["sha256"][:32]


def test_values_that_are_no_numbers_and_names_mlflow_refuses_cost_nothing(tracker: Tracker) -> None:
    metrics = {"a": None, "b": math.nan, "c": math.inf, "d": "text", "reward/my.mod:R(1)/mean": 1.0}
    tracker.log_metrics(metrics, step=0)
    tracker.finish()

    assert client_of(tracker).get_run(tracker.run_id).data.metrics == {"reward/my.mod_R_1_/mean": 1.0}
    assert tracker.num_failures == 0


def test_a_resume_goes_on_in_the_same_run(tracker: Tracker, output_dir: Path) -> None:
    tracker.log_parameters({"seed": 1, "iterations": 5})
    tracker.log_metrics({"reward/mean": 0.1}, step=1)
    tracker.finish("KILLED")

    resumed = Tracker.start(TrackingSettings(), output_dir, "numbers", run_id=tracker.run_id)
    resumed.log_parameters({"seed": 1, "iterations": 9, "cluster": "laptop"})
    resumed.log_metrics({"reward/mean": 0.2}, step=2)
    resumed.finish()

    run = client_of(tracker).get_run(tracker.run_id)
    assert resumed.run_id == tracker.run_id
    assert resumed.num_failures == 0
    assert run.info.status == "FINISHED"
    assert run.data.params == {"seed": "1", "iterations": "5", "cluster": "laptop"}
    assert len(client_of(tracker).get_metric_history(tracker.run_id, "reward/mean")) == 2


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_run_that_the_server_lost_begins_anew(
    is_deleted: bool, tracker: Tracker, output_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = tracker.run_id if is_deleted else "0" * 32
    if is_deleted:
        tracker.finish()
        client_of(tracker).delete_run(lost)
    resumed = Tracker.start(TrackingSettings(), output_dir, "numbers", run_id=lost)
    resumed.finish()

    assert resumed.run_id not in (None, lost)
    assert "a new run begins" in caplog.text


def test_a_server_that_fails_at_a_resume_keeps_the_run(
    tracker: Tracker, output_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints name the run, so that the next resume goes on with it."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    def fail(*_: Any, **__: Any) -> None:
        raise MlflowException("the database is locked")  # an internal error, as REST servers say, too

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "update_run", fail)
        failing = Tracker.start(TrackingSettings(), output_dir, "numbers", run_id=tracker.run_id)
        kept = failing.run_id
        failing.finish()
    assert failing.num_failures == 1
    assert kept == tracker.run_id
    resumed = Tracker.start(TrackingSettings(), output_dir, "numbers", run_id=kept)
    assert resumed.run_id == tracker.run_id
    resumed.finish()
    assert resumed.num_failures == 0


def test_logging_does_not_wait_for_mlflow(output_dir: Path) -> None:
    began = time.perf_counter()
    tracker = Tracker.start(TrackingSettings(), output_dir, "quick")
    for step in range(100):
        tracker.log_metrics({f"metric/{i}": float(i) for i in range(30)}, step)
    elapsed_s = time.perf_counter() - began
    tracker.finish()

    assert elapsed_s < 2.0
    assert len(client_of(tracker).get_metric_history(tracker.run_id, "metric/29")) == 100


def test_a_tracker_that_waits_opens_when_it_may_and_loses_nothing(
    output_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = mlflow_run.MlflowRun.open

    def open_and_tell(*arguments: Any) -> Any:
        opened.append("open")
        return real(*arguments)

    monkeypatch.setattr(mlflow_run.MlflowRun, "open", open_and_tell)
    tracker = Tracker.start(TrackingSettings(), output_dir, "waits", at_once=False)
    tracker.log_metrics({"reward/mean": 0.5}, 1)
    time.sleep(0.2)
    assert opened == []
    tracker.open()
    assert tracker.run_id is not None
    tracker.finish()
    assert opened == ["open"] and tracker.num_failures == 0


def test_a_tracker_that_waits_is_written_at_the_end(output_dir: Path) -> None:
    """A run whose start fails is in MLflow, as failed."""
    tracker = Tracker.start(TrackingSettings(), output_dir, "never_up", at_once=False)
    tracker.log_parameters({"seed": 0})
    tracker.finish("FAILED")
    assert tracker._run_id is not None and tracker.num_failures == 0


def test_a_server_that_is_gone_is_told_once_and_costs_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    began = time.perf_counter()
    tracker = Tracker.start(TrackingSettings(uri=f"http://127.0.0.1:{port}"), tmp_path, "numbers")
    tracker.log_metrics({"reward/mean": 0.1}, step=1)

    assert tracker.run_id is None
    tracker.log_metrics({"reward/mean": 0.2}, step=2)
    tracker.finish()
    assert time.perf_counter() - began < 30
    assert caplog.text.count("the run continues without it") == 1


def test_a_server_that_hangs_fills_the_queue_and_not_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "MAX_PENDING", 3)
    monkeypatch.setattr(background, "FINISH_S", 0.2)
    with socket.socket() as silent:  # accepts the connection and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        tracker = Tracker.start(
            TrackingSettings(uri=f"http://127.0.0.1:{silent.getsockname()[1]}"), tmp_path, "numbers"
        )
        for step in range(10):
            tracker.log_metrics({"reward/mean": 0.1}, step)
        tracker.finish()

    assert tracker.num_failures >= 7
    assert "3 entries wait" in caplog.text
    assert "did not take the run's last" in caplog.text


def test_tracking_switched_off_does_nothing(tmp_path: Path) -> None:
    tracker = Tracker.start(TrackingSettings(enabled=False), tmp_path, "numbers")
    tracker.log_metrics({"reward/mean": 0.1}, step=1)
    tracker.finish()

    assert tracker.run_id is None
    assert list(tmp_path.iterdir()) == []
