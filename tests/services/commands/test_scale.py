"""`whetstone scale` where there is nothing to scale; `tests/reward_servers/test_scaling.py` has the rest."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.errors import InputError
from services.cluster import open_cluster
from services.commands.scale import run


def test_nothing_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match=r"nor `serve` runs at RAY_ADDRESS=127\.0\.0\.1:1: nothing to scale"):
        run(["rouge", "2"])


@pytest.mark.parametrize("argv", [[], ["rouge"], ["rouge", "0"], ["rouge", "many"]])
def test_a_label_and_a_number_are_needed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(argv)
    errors = capsys.readouterr().err
    assert "usage: whetstone scale" in errors and "_number" not in errors


def test_a_runs_workers_are_no_metrics(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--metric with workers=2: .* leave out --metric"):
        run([str(tmp_path), "workers=2", "--metric"])


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A cluster that is joined, with these applications and no replicas."""
    from reward_servers.serving import app

    applications: dict[str, Any] = {}
    context = SimpleNamespace(dashboard_url="127.0.0.1:8265")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(app.ray, "init", lambda *_, **__: context)
    monkeypatch.setattr(app.ray, "shutdown", lambda: None)
    monkeypatch.setattr(app.serve, "status", lambda: SimpleNamespace(applications=applications))
    monkeypatch.setattr(open_cluster, "_answers_anybody", lambda address: False)
    return applications


def test_a_label_that_is_not_served_is_answered_with_those_that_are(joined: dict[str, Any]) -> None:
    """Where there is none, no empty list is shown."""
    with pytest.raises(InputError) as refused:
        run(["nope", "4"])
    assert str(refused.value) == (
        "no reward 'nope' is served here, nor is any other reward. Ray Serve has a run's plain reward only "
        "with reward_servers.LABEL.replicas=1"
    )
    joined["metric-rouge"] = None
    with pytest.raises(InputError, match=r"nor is any other reward\. Ray"):
        run(["nope", "4"])
    joined["reward-length"] = None
    with pytest.raises(InputError, match=r"no reward 'nope' is served here; there are: length\. Ray"):
        run(["nope", "4"])


def test_a_cluster_that_asks_for_no_token_is_told(
    joined: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for is_open in (False, True):
        monkeypatch.setattr(open_cluster, "_answers_anybody", lambda address, is_open=is_open: is_open)
        with pytest.raises(InputError):
            run(["nope", "4"])
        printed = capsys.readouterr().err
        assert ("warning: http://127.0.0.1:8265 asks for no token" in printed) is is_open
