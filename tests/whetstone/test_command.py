"""A command in a process of its own: its lines are shown, its failures raised, interruptions handed on."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from whetstone.command import run_command
from whetstone.errors import InputError, RunError

PATIENT = """
import signal, sys, time, pathlib
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(130)))
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


def test_a_commands_output_is_shown_and_returned(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--version"]).startswith("whetstone ")
    assert capsys.readouterr().out.startswith("whetstone ")

    assert run_command(["--version"], show=False).startswith("whetstone ")
    assert capsys.readouterr().out == ""


def test_nothing_is_drawn_as_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a notebook's kernel has it
    assert "\x1b" not in run_command(["list", "tasks"], show=False)


def test_what_the_caller_can_mend_is_an_input_error_with_the_message_alone() -> None:
    with pytest.raises(InputError, match=r"^reward=rogue: no such reward; did you mean 'rouge'\?"):
        run_command(["train", "model.path=gpt2", "reward=rogue"])


def test_another_failure_is_a_run_error() -> None:
    with pytest.raises(RunError, match=r"No module named whetstone\.nothing"):
        run_command([], module="whetstone.nothing")


def test_an_interruption_is_handed_on_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "patient.py").write_text(PATIENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    began = tmp_path / "began"

    def interrupt() -> None:
        while not began.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_command([str(began)], module="patient")
    assert capsys.readouterr().out == "saved\n"


def test_the_import_is_fast_and_brings_errors_alone() -> None:
    script = "import sys, whetstone; print(*{name.partition('.')[0] for name in sys.modules})"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert time.monotonic() - began < 2
    heavy = {"torch", "ray", "vllm", "transformers", "pandas", "numpy", "pydantic", "hydra"}
    ours = {"services", "learner", "reward_servers", "rollout_workers", "conf"}
    assert not (heavy | ours) & set(done.stdout.split())
