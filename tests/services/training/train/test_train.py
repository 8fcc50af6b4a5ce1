"""`whetstone train` in this process: when a run is done, and what a start says of changed files."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError, RunError
from services.runs.checkpoint_retention import Keeper, trained_until
from services.runs.folder import RunFolder
from services.runs.json_lines import read_object
from services.runs.provenance import changed_since_begin, starts
from services.runs.tracking.run_log import close_log
from services.training.train.train import train
from tests.local_run import small_run
from tests.models import make_tiny_model
from tests.services.runs.tracking.test_notice import Hook

BEST = "val/reward/mean"
PATIENCE_S = 60.0


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    yield make_tiny_model(tmp_path / "model")
    close_log()


def start(model: Path, iterations: int, keep_best: str | None = BEST) -> RunFolder:
    options: dict[str, Any] = {
        "algorithm": "ppo",
        "task": {"name": "increasing_numbers", "num_prompts": 8, "num_eval_prompts": 2},
        "iterations": iterations,
        "save_every": 1,
        "evaluate_every": 1,
        "keep_checkpoints": 9,
        "keep_best": keep_best,
        "metrics": [],
        "rollout": {"prompts_per_iteration": 4},
    }
    assert train(small_run(model, model.parent, **options), here=True) == 0
    return RunFolder(model.parent / "run")


def test_a_rule_ends_a_run_and_the_same_command_says_so(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = Hook(200, 200)
    options: dict[str, Any] = {
        "algorithm": "ppo",
        "notify": {"url": hook.settings().url},
        "task": {"name": "increasing_numbers", "num_prompts": 8, "num_eval_prompts": 2},
        "iterations": 3,
        "evaluate_every": "never",
        "rollout": {"prompts_per_iteration": 4},
    }

    def start_with(*rules: str) -> str:
        assert train(small_run(model, model.parent, **options, stop_when=list(rules)), here=True) == 0
        return capsys.readouterr().out

    output = start_with("response_length/mean>=1 for 2")
    folder = RunFolder(model.parent / "run")
    assert "stopped   after iteration 2 by response_length/mean>=1 for 2 (" in output
    assert list(folder.checkpoints()) == [2] and trained_until(folder.model) == 2
    assert "is done: stop_when ended it after iteration 2" in start_with("response_length/mean>=1 for 2")
    assert "stopped" not in start_with()
    assert [row["iteration"] for row in folder.rollout_info()] == [1, 2, 3]
    assert [(body["event"], body["iteration"]) for body in hook.got] == [
        ("stopped_by_rule", 2),
        ("finished", 3),
    ]


def test_a_run_is_done_only_with_the_models_that_were_asked_for(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = start(model, 1)

    def fails(*_: object) -> None:
        raise RunError("no room for a model")

    with monkeypatch.context() as patched, pytest.raises(RunError, match="no room"):
        patched.setattr(Keeper, "export", fails)
        start(model, 2)
    assert max(folder.checkpoints()) == 2 and trained_until(folder.model) == 1

    start(model, 2)
    assert trained_until(folder.model) == 2 and "is done" not in capsys.readouterr().out
    start(model, 2)
    assert "is done: 2 iterations" in capsys.readouterr().out

    start(model, 2, f"min:{BEST}")
    best = read_object(folder.best_file)
    assert "is done" not in capsys.readouterr().out
    assert best["better"] == "min" and trained_until(folder.best_model) == best["iteration"]
    with pytest.raises(InputError, match="no metric 'reward/men'"):
        start(model, 2, "val/reward/men")


def test_a_resume_says_that_the_first_model_has_changed(model: Path) -> None:
    message = (
        f"model.path {model} has changed since this run began. Bring it back, or choose another run_name="
    )
    folder = start(model, 1, None)
    await_starts(folder, 1)
    start(model, 2, None)
    await_starts(folder, 2)
    assert changed_since_begin(folder) == []

    (weights,) = model.glob("*.safetensors")
    other = make_tiny_model(model.parent / "other", sharpness=2.0)
    weights.write_bytes((other / weights.name).read_bytes())
    start(model, 3, None)
    deadline = time.monotonic() + PATIENCE_S
    while message not in folder.log.read_text():
        assert time.monotonic() < deadline, folder.log.read_text()
        time.sleep(0.1)


def await_starts(folder: RunFolder, number: int) -> None:
    """Wait until the thread of the last start has written its entry."""
    deadline = time.monotonic() + PATIENCE_S
    while len(starts(folder)) < number:
        assert time.monotonic() < deadline
        time.sleep(0.1)
