"""A start that is refused leaves the folder of its run as it was."""

from pathlib import Path
from typing import Any

import pytest

import whetstone
from tests.models import make_tiny_model

ROWS = [{"prompt": str(number)} for number in range(20)]


def files_in(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", "log.txt")
    }


def ones(k: float) -> Any:
    return lambda samples: [k for _ in samples]


def test_files_that_lay_there_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs/mine"
    for name in ("rows/train.jsonl", "functions/notes.py"):
        (run / name).parent.mkdir(parents=True)
        (run / name).write_text("the user's own")
    before = files_in(run)
    with pytest.raises(whetstone.InputError, match="nowhere"):
        whetstone.train(model__path="nowhere", task=ROWS, reward=ones(1.0), run_name="mine")
    assert files_in(run) == before


def test_a_refused_resume_leaves_no_changed_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_tiny_model(tmp_path / "model")
    run = tmp_path / "runs/mine"
    (run / "functions").mkdir(parents=True)
    (run / "functions/lambda@0123456789ab.py").write_text("the function of the run")
    (run / "config.yaml").write_text("reward:\n- name: object:lambda@0123456789ab\n")
    before = files_in(run)
    with pytest.raises(whetstone.InputError, match="holds a run with another configuration"):
        whetstone.train(
            model__path="model",
            rollout__engine="transformers",
            task=ROWS,
            reward=ones(1.0),
            run_name="mine",
            iterations=1,
        )
    assert files_in(run) == before
