"""How a run begins and ends its trackers, with a real MLflow."""

import time
from pathlib import Path
from typing import Any

import pytest

from services.runs.folder import RunFolder
from services.runs.tracking import background, mlflow_run
from services.runs.tracking.identity import identity_of
from services.runs.tracking.settings import TrackingSettings
from services.runs.tracking.tracker import Tracker
from services.training.train.train import _finish_tracking, _start_tracker


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run's folder with configuration, log and model."""
    folder = RunFolder(tmp_path / "numbers")
    folder.model.mkdir(parents=True)
    folder.config_file.write_text("seed: 1\n")
    folder.log.write_text("it ran\n")
    (folder.model / "model.safetensors").write_bytes(b"weights")
    return folder


def started(folder: RunFolder, **options: Any) -> Tracker:
    config = {"output_dir": str(folder.path.parent), "run_name": folder.path.name}
    return _start_tracker(TrackingSettings(**options), config, folder)


def test_the_end_waits_for_the_model_and_says_so(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy takes a second, which is more than the wait for numbers alone."""
    copy = mlflow_run.MlflowRun.artifact

    def copy_slowly(run: mlflow_run.MlflowRun, path: Path) -> None:
        time.sleep(1.0 * (path == folder.model))
        copy(run, path)

    monkeypatch.setattr(mlflow_run.MlflowRun, "artifact", copy_slowly)
    monkeypatch.setattr("services.terminal.doing.FIRST_S", 0.0)
    tracker = started(folder, model=True)
    assert tracker.run_id is not None
    monkeypatch.setattr(background, "FINISH_S", 0.1)
    _finish_tracking(tracker, folder, "FINISHED")

    from mlflow import MlflowClient

    run = MlflowClient(tracking_uri=tracker.uri).get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    artifacts = folder.path.parent / "mlartifacts" / tracker.run_id / "artifacts"
    assert (artifacts / "model" / "model.safetensors").read_bytes() == b"weights"
    assert "copying the model into MLflow …" in capsys.readouterr().err


def test_a_runs_trackers_get_its_own_id(folder: RunFolder) -> None:
    tracker = started(folder, enabled=False)
    assert tracker._identity == identity_of(folder) is not None


def test_a_run_that_was_stopped_leaves_its_earlier_model_where_it_is(folder: RunFolder) -> None:
    tracker = started(folder, model=True)
    _finish_tracking(tracker, folder, "KILLED")
    artifacts = folder.path.parent / "mlartifacts" / str(tracker.run_id) / "artifacts"
    assert (artifacts / "log.txt").is_file() and not (artifacts / "model").exists()
