"""The command as a person meets it: a process, its exit code, its output, and how long it takes."""

import json
import logging
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from contracts.errors import InputError, LearnerError
from reward_servers.graders import REWARDS
from services import cli
from services.commands.listing import KINDS, blocks
from tests.progress import without_progress

PROMISED_S = 10.0  # of a processor: one and a half on an idle machine, more on a busy or a slow one


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str
    cpu_s: float  # the processor's time: what the clock shows on a machine with nothing else to do


def whetstone(*arguments: str, cwd: Path | None = None) -> Done:
    def cpu_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = cpu_s()
    command = [sys.executable, "-m", "services.cli", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60)
    return Done(ended.returncode, ended.stdout, without_progress(ended.stderr), cpu_s() - before)


# Help and lists


@pytest.mark.parametrize("arguments", [[], ["--help"], ["train", "--help"], ["list", "--help"]])
def test_help_is_quick(arguments: list[str]) -> None:
    done = whetstone(*arguments)
    assert (done.code, done.err) == (0, "")
    assert "whetstone" in done.out
    assert done.cpu_s < PROMISED_S


def test_help_names_every_command_and_train_every_choice() -> None:
    overview = whetstone("--help").out
    assert all(f"\n  {name} " in overview for name in cli.COMMANDS)
    train = whetstone("train", "--help").out
    assert all(word in train for word in ("ppo", "imdb", "demo", "laptop", "iterations", "output_dir"))


def test_the_version() -> None:
    assert whetstone("--version").out.startswith("whetstone 0.")


@pytest.mark.parametrize("kind", KINDS)
def test_lists_for_programs(kind: str) -> None:
    done = whetstone("list", kind, "--json")
    assert done.code == 0 and done.cpu_s < PROMISED_S
    listed = json.loads(done.out)
    assert listed
    for block in listed:  # what some need besides: Java, a library
        assert set(block) - {"requires", "missing"} == {"name", "description", "options"}
    assert all(block["description"].endswith(".") for block in listed)


def test_lists_hold_types_bounds_and_defaults() -> None:
    (ppo,) = [block for block in blocks("algorithms") if block["name"] == "ppo"]
    assert ppo["options"]["gamma"] == {"type": "float, >= 0, <= 1", "default": 1.0}
    assert ppo["options"]["kl.controller"] == {"type": "'rl4lms' | 'ziegler'", "default": "rl4lms"}
    assert ppo["options"]["minibatch_size"]["type"] == "int | null, >= 1"
    # The default that a component gives its nested settings, not the nested class's own.
    (supervised,) = [block for block in blocks("algorithms") if block["name"] == "supervised"]
    assert supervised["options"]["kl.coefficient"]["default"] == 0.0


def test_lists_for_people() -> None:
    done = whetstone("list", "rewards")
    assert done.code == 0
    assert "rouge: ROUGE F1" in done.out and "reward.rouge_type" in done.out


def test_a_list_of_everything_names_it() -> None:
    lines = whetstone("list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(KINDS)
    assert f"rewards       {', '.join(REWARDS)}" in lines
    lists = json.loads(whetstone("list", "--json").out)
    assert {kind: len(listed) for kind, listed in lists.items()} == {
        kind: len(blocks(kind)) for kind in KINDS
    }


# Refusals: exit code 2, one message, no traceback, at once


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "whetstone trian: there is no such command. Did you mean 'train'?"),
        (["list", "reward"], "no such kind; did you mean 'rewards'?"),
        (["train"], "model.path is required"),
        (["train", "model.path=gpt2", "algorithm=pppo"], "did you mean 'ppo'?"),
        (["train", "model.path=gpt2", "rollout.max_token=3"], "did you mean 'max_tokens'?"),
        (["train", "model.path=./nothing/here"], "there is no such folder"),
        (["train", "-m", "model.path=gpt2", "seed=1"], "no key has several values"),
    ],
)
def test_bad_input_gets_one_message_at_once(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = whetstone(*arguments, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "Traceback" not in done.err
    assert done.cpu_s < PROMISED_S
    assert list(tmp_path.iterdir()) == []


# Faults


def stopped_by(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code when a command raises `error`."""

    def fail(_argv: list[str]) -> int:
        raise error

    monkeypatch.setattr("services.commands.listing.run", fail)
    return cli.main(["list"])


def test_an_unexpected_fault_is_one_line_and_a_traceback_in_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert stopped_by(KeyError("what"), monkeypatch) == 1
    (log,) = tmp_path.iterdir()
    error = capsys.readouterr().err
    assert error == f"whetstone list: unexpected KeyError: 'what' (traceback in {log})\n"
    assert "Traceback" in log.read_text()


def test_a_known_fault_goes_to_the_runs_own_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    handler = logging.FileHandler(tmp_path / "log.txt")
    logging.getLogger().addHandler(handler)
    try:
        assert stopped_by(LearnerError("lost\nits mind"), monkeypatch) == 1
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    error = capsys.readouterr().err
    assert error == f"whetstone list: lost its mind (traceback in {tmp_path / 'log.txt'})\n"
    assert "Traceback" in (tmp_path / "log.txt").read_text()


def test_input_that_another_process_refuses_is_still_the_users_to_mend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class FromAnotherProcess(InputError):
        cause = InputError("no such device")

    assert stopped_by(FromAnotherProcess("a remote traceback\n" * 30), monkeypatch) == 2
    assert capsys.readouterr().err == "whetstone list: no such device\n"


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (SystemExit(2), 2), (SystemExit("x"), 1)]
)
def test_other_ends(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stopped_by(error, monkeypatch) == code


def test_a_reader_that_leaves_early_is_no_fault() -> None:
    listed = f"{sys.executable} -m services.cli list algorithms --json"
    done = subprocess.run(["bash", "-c", f"{listed} | true"], capture_output=True, text=True, timeout=60)
    assert without_progress(done.stderr) == ""
