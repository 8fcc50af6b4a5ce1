"""Secrets by their shape, and in a configuration; tests/test_ways_out.py has all the ways out."""

from pathlib import Path

import pytest
import yaml

from contracts.secrets.redaction import redact, without_secrets
from services.runs.folder import RunFolder

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
