"""Commands that take a run's folder refuse another alike: its name, the runs nearby, exit code 2."""

from pathlib import Path

import pytest

from services.cli import main

JUDGE = ["--url", "http://127.0.0.1:9/v1", "--model", "judge"]
COMMANDS = {
    "report": ["report", "RUN"],
    "watch": ["watch", "RUN"],
    "compare": ["compare", "RUN", "RUN"],
    "diagnose": ["diagnose", "RUN"],
    "doctor": ["doctor", "RUN"],
    "push": ["push", "RUN", "./published"],
    "scale": ["scale", "RUN", "workers=2"],
    "evaluate": ["evaluate", "RUN"],
    "generate": ["generate", "RUN", "--prompt", "3 7"],
    "chat": ["chat", "RUN"],
    "serve-model": ["serve-model", "RUN"],
    "judge": ["judge", "RUN", "RUN", *JUDGE],
}


def a_run(place: Path, name: str) -> None:
    (place / "runs" / name).mkdir(parents=True)
    (place / "runs" / name / "config.yaml").write_text("iterations: 1\n")


@pytest.mark.parametrize("wrong", ["runs/numbers-seed2", "runs"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_folder_is_answered_with_the_runs_that_are_there(
    command: str,
    wrong: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    a_run(tmp_path, name := "numbers-seed1")
    code = main([word.replace("RUN", wrong) for word in COMMANDS[command]])
    message = capsys.readouterr().err
    assert code == 2, message
    assert f"whetstone {command}: {wrong}" in message
    assert message.endswith(f"Runs nearby, newest first:\n  runs/{name}\n")
    assert (f"Did you mean runs/{name}? " in message) is (wrong != "runs")


def test_one_run_to_compare_is_answered_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        a_run(tmp_path, name)
    assert main(["compare", "runs/one"]) == 2
    assert capsys.readouterr().err.endswith(
        "got runs/one; expected two or more different runs. Runs nearby, newest first:\n  runs/two\n"
    )
