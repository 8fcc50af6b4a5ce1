"""Secrets reach neither the run's folder, nor MLflow, nor its log, nor what is printed."""

import logging
from pathlib import Path

import pytest
import yaml

from contracts.redaction import redact, without_secrets
from services import cli
from services.console import open_console
from services.run_folder import RunFolder
from services.tracking import Tracker, TrackingSettings
from services.train import log_to

SECRET = "hunter2-hunter2"
CONFIG = {
    "tracking": {"uri": f"https://ada:{SECRET}@mlflow.example.org/", "experiment": "whetstone"},
    "reward": [{"name": "mine:Judge", "api_key": SECRET, "options": {"password": SECRET}}],
    "task": {"eou_token": "<eou>", "hub_token": SECRET},
    "rollout": {"max_tokens": 48},
}


@pytest.mark.parametrize(
    "text",
    [
        f"connecting to postgresql://ada:{SECRET}@host:5432/db failed",
        f"GET https://host/?api_key={SECRET}&n=1",
        f"reward={{name: judge, api_key: {SECRET}}}",
        f"{{'password': '{SECRET}', 'n': 1}}",
        f"Authorization: Bearer {SECRET}",
        f"tracking.auth_token={SECRET}",
    ],
)
def test_a_text_keeps_everything_but_the_secret(text: str) -> None:
    assert SECRET not in redact(text) and "***" in redact(text)
    assert redact(redact(text)) == redact(text)
    # All of it that is no secret is still there, in order.
    rest = iter(redact(text))
    assert all(letter in rest for part in text.split(SECRET) for letter in part.replace("ada:", ""))


@pytest.mark.parametrize(
    "text",
    [
        "rollout.max_tokens=48 task.eou_token=<eou> model.tokenizer=gpt2 keep_checkpoints=2",
        "the token: 3 of 5; bearer of bad news; key=value",
        "http://127.0.0.1:8000/score/rouge and ada@example.org",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


def test_the_value_of_a_secret_variable_is_hidden_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    monkeypatch.setenv("WHETSTONE_TOKEN", "0123456789abcdef")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "short")  # may be any word
    assert redact("401 for hf_abcdefgh and 0123456789abcdef in short") == "401 for *** and *** in short"


def test_a_configuration_keeps_its_shape() -> None:
    shown = without_secrets(CONFIG)
    assert SECRET not in str(shown)
    assert shown["rollout"] == CONFIG["rollout"] and shown["task"]["eou_token"] == "<eou>"
    assert shown["reward"][0]["name"] == "mine:Judge"
    assert shown["tracking"]["uri"] == "https://***@mlflow.example.org/"


def test_the_runs_folder_has_none_and_the_run_goes_on_all_the_same(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, "run", CONFIG, "auto")
    assert SECRET not in folder.config_file.read_text()
    assert yaml.safe_load(folder.config_file.read_text())["rollout"] == {"max_tokens": 48}
    RunFolder.open(tmp_path, "run", CONFIG, "auto")  # not "another configuration"


def test_neither_has_mlflow(tmp_path: Path) -> None:
    tracker = Tracker.start(TrackingSettings(), tmp_path, "run")
    tracker.log_parameters({"reward.api_key": SECRET, "tracking.uri": CONFIG["tracking"]["uri"], "seed": 0})
    assert tracker.run_id
    tracker.finish()
    assert tracker.num_failures == 0
    assert SECRET.encode() not in (tmp_path / "mlflow.db").read_bytes()


def test_neither_has_the_log(tmp_path: Path) -> None:
    before = list(logging.getLogger().handlers)
    try:
        log_to(tmp_path / "log.txt", open_console())
        try:
            raise OSError(f"https://ada:{SECRET}@host can't be reached")
        except OSError:
            logging.getLogger("some_library").warning("failed with password=%s", SECRET, exc_info=True)
    finally:
        for handler in set(logging.getLogger().handlers) - set(before):
            logging.getLogger().removeHandler(handler)
            handler.close()
        for package in ("learner", "reward_servers", "rollout_workers", "services"):
            logging.getLogger(package).handlers.clear()
    text = (tmp_path / "log.txt").read_text()
    assert "can't be reached" in text and SECRET not in text


def test_neither_is_it_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: list[str]) -> int:
        raise OSError(f"https://ada:{SECRET}@host can't be reached")

    monkeypatch.setattr("services.listing.run", fail)
    assert cli.main(["list"]) == 1
    told = capsys.readouterr().err
    assert "can't be reached" in told and SECRET not in told
    log = Path(told.rpartition("traceback in ")[2].rstrip(")\n"))
    assert SECRET not in log.read_text()
    log.unlink()
