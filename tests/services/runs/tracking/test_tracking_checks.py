"""Values of `tracking.` refused before a run starts; MLflow would have refused them, too."""

from pathlib import Path

import pytest

from contracts.errors import InputError
from services import cli
from services.runs.tracking.checks import check_tracking
from services.runs.tracking.mlflow_run import TrackingSettings

REFUSED = [
    ("foo://x", r"MLflow has no store for foo://; there are: databricks, http, https, mssql"),
    ("htp://host", r"did you mean 'http'\?"),
    ("s3://bucket/runs", "no store for s3://"),
    ("file:///tmp/mlruns", "MLflow no longer writes into folders; expected sqlite:////FOLDER/mlflow.db"),
    ("mlruns", "MLflow no longer writes into folders"),
    ("sqlite://mlflow.db", "expected sqlite:///FILE"),
    ("postgresql+foo://ada@host/db", r"postgresql\+foo://\*\*\*@host/db: is not a database's address"),
    ("mssql+pymssql://host/db", r"driver of this database is not installed: .*pip install pymssql"),
    ("http://", "expected a server, such as http://127.0.0.1:5000"),
    ("http://host:99999", "is not an address: Port out of range"),
    ("http://[::1", "is not an address"),
]


@pytest.mark.parametrize(("uri", "message"), REFUSED)
def test_an_address_that_mlflow_can_not_use_is_refused(
    uri: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(InputError, match=message):
        check_tracking(TrackingSettings(uri=uri))
    check_tracking(TrackingSettings(uri=uri, enabled=False))


@pytest.mark.parametrize("uri", [uri for uri, _ in REFUSED if not uri.startswith("http:")])
def test_mlflow_itself_does_not_take_it(uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=r"."):
        MlflowClient(tracking_uri=uri).search_experiments()


@pytest.mark.parametrize(
    "uri", [None, "http://127.0.0.1:5000", "https://ada:pw@host/mlflow", "databricks", "databricks://me"]
)
def test_others_are_taken(uri: str | None, tmp_path: Path) -> None:
    check_tracking(TrackingSettings(uri=uri))
    check_tracking(TrackingSettings(uri=f"sqlite:///{tmp_path}/mlflow.db"))


def test_folders_are_taken_where_mlflow_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    check_tracking(TrackingSettings(uri="file:///tmp/mlruns"))


@pytest.mark.parametrize("name", ["", "  ", "x" * 501, "a\ud83d"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"tracking\.experiment: "):
        check_tracking(TrackingSettings(experiment=name))


@pytest.mark.parametrize("command", ["train", "plan"])
def test_nothing_is_started(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model.path=x", "tracking.uri=foo://x", f"output_dir={tmp_path}/runs", "task=increasing_numbers"]
    assert cli.main([command, *words]) == 2
    assert "tracking.uri=foo://x: MLflow has no store for foo://" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
