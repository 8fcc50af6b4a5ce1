"""Sweeps: which runs they are, that no two share a folder, and that all are checked before one starts."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from services.runs.folder import RunFolder
from services.terminal.interrupts import Interrupted
from services.training.train.sweep import Job, _print_table, expand, jobs, start
from services.training.train.sweep import sweep as run
from tests.services.terminal.test_interrupts import PATIENCE_S, run_script

MODEL = "model.path=some/model"


def names(*arguments: str) -> list[str]:
    return [job.run_name for job in jobs([MODEL, *arguments])]


def test_every_combination_is_a_run_the_last_key_fastest() -> None:
    combinations, swept = expand(["seed=0,1", "iterations=5", "rollout.max_tokens=8,16"])
    assert combinations == [
        ["seed=0", "iterations=5", "rollout.max_tokens=8"],
        ["seed=0", "iterations=5", "rollout.max_tokens=16"],
        ["seed=1", "iterations=5", "rollout.max_tokens=8"],
        ["seed=1", "iterations=5", "rollout.max_tokens=16"],
    ]
    assert swept == ["seed", "rollout.max_tokens"]


def test_ranges_are_hydras() -> None:
    assert len(expand(["seed=range(3)"])[0]) == 3


def test_names_tell_the_runs_apart() -> None:
    assert names("seed=0,1") == ["increasing_numbers-ppo-seed0", "increasing_numbers-ppo-seed1"]
    assert names("algorithm.clip_range=0.1,0.2") == [
        "increasing_numbers-ppo-seed0-clip_range-0.1",
        "increasing_numbers-ppo-seed0-clip_range-0.2",
    ]
    assert names("seed=0,1", "run_name=mine") == ["mine-seed-0", "mine-seed-1"]
    assert names("seed=0,1", "run_name=a,b") == ["a-seed-0", "b-seed-0", "a-seed-1", "b-seed-1"]


def test_a_name_is_a_folder_name_whatever_the_values() -> None:
    for name in names("reward=[length],[{name: rouge, weight: 2}]"):
        assert Path(name).name == name and not set(name) & set(" /={}[],")


@pytest.mark.parametrize(
    "swept",
    [
        "tracking.uri=http://a:pw@h,http://b",
        "reward=[{name: 'tests.test_ways_out:Leaky', api_key: y}],[length]",
    ],
)
def test_a_secret_is_nothing_to_sweep_over(swept: str) -> None:
    with pytest.raises(InputError, match="so no secret can be in them"):
        names(swept)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([MODEL, "seed=1"], "no key has several values"),
        ([MODEL, "seed"], "seed: expected KEY=VALUE"),
        ([MODEL, "seed=interval(0, 1)"], "does not support sweep type"),
        ([MODEL, "seed=1,1"], "Is a value listed twice?"),
        ([MODEL, "seed=1,x"], "seed: got 'x'"),
        ([MODEL, "algorithm=ppo,pppo"], "did you mean 'ppo'?"),
    ],
)
def test_one_wrong_run_refuses_the_whole_sweep(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        run(arguments)
    assert message in str(caught.value)


def test_a_run_that_fails_does_not_stop_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "services.training.preflight.preflight.check", lambda _settings: None
    )  # as if it went away later
    code = run([f"model.path={tmp_path / 'nothing'}", f"output_dir={tmp_path}", "seed=0,1"])
    printed = capfd.readouterr()
    assert code == 2
    assert printed.err.count("there is no such folder") == 2
    assert "run 2 of 2" in printed.out and "exit code" in printed.out
    assert list(tmp_path.iterdir()) == []


def test_what_a_run_would_refuse_is_refused_before_the_first_is_started(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        run([f"model.path={tmp_path / 'nothing'}", f"output_dir={tmp_path}", "seed=0,1"])
    assert capfd.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_table_says_how_certain_each_reward_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = RunFolder.open(tmp_path, "done", {}, resume="auto")
    done.append_rollout_info(7, {"reward/mean": 0.51234, "reward/standard_error": 0.012})
    done.append_evaluation(7, "validation", {"reward/mean": 0.5, "reward/standard_error": 0.029})
    planned = [Job((), name, tmp_path / name) for name in ("done", "new")]
    _print_table(planned, [0, 2])
    rows = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells == [["done", "7", "0.512 ± 0.012", "0.500 ± 0.029", "0"], ["new", "0", "–", "–", "2"]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_alone_is_asked_to_stop_hands_it_on_and_waits(tmp_path: Path, number: int) -> None:
    run = tmp_path / "run"
    run.write_text(
        f"#!/bin/sh\ntrap 'sleep 0.3; touch {tmp_path / 'saved'}; exit 130' TERM\n"
        f"touch {tmp_path / 'begun'}\nwhile :; do sleep 0.05; done\n"
    )
    run.chmod(0o755)
    process = run_script(
        tmp_path,
        f"""
        import threading
        from pathlib import Path
        from services import cli
        from services.training.train import sweep
        def tell():
            while not Path({str(tmp_path / "begun")!r}).exists():
                time.sleep(0.01)
            print("ready", flush=True)
        def run(arguments):
            threading.Thread(target=tell).start()
            sys.executable = {str(run)!r}
            return sweep.start(sweep.Job((), "x", Path("x")), 1, 1)
        sweep.say = lambda *_, **__: None
        cli.COMMANDS["x"] = ("__main__:run", "")
        sys.exit(cli.main(["x"]))
        """,
    )
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert (tmp_path / "saved").exists()


def test_a_stop_while_a_job_is_being_started_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes when the process is there, and nobody has its name yet."""
    begin, begun = subprocess.Popen, list[Any]()

    def and_stop(*_: Any, **__: Any) -> Any:
        begun.append(begin(["sleep", "60"]))
        os.kill(os.getpid(), signal.SIGTERM)
        return begun[0]

    monkeypatch.setattr(subprocess, "Popen", and_stop)
    with pytest.raises(Interrupted):
        start(Job((), "x", Path("x")), 1, 1)
    assert begun[0].returncode == -signal.SIGTERM
