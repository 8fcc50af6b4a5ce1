"""Commands that cut prompts say so: plan, train, evaluate and annotate; test_generate.py has the rest."""

import re
from pathlib import Path
from typing import Any

import pytest

from services import cli
from services.commands import evaluate, train
from services.data.tasks.base import SPLITS
from services.runs.tracking.run_log import close_log
from services.training.loop.evaluations.evaluation import Evaluation
from tests.models import make_tiny_model

CUT = r"%s: [\d,]+ of [\d,]+ \(100%%\) prompts are longer than 1 tokens .* their last 1, without their begin"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def command(model: Path, output_dir: Path) -> list[str]:
    return [
        f"model.path={model}",
        f"output_dir={output_dir}",
        "run_name=numbers",
        "rollout.max_tokens=8",
        "rollout.kv_cache_gib=0.1",
        "rollout.max_prompt_tokens=1",
        "tracking.enabled=false",
    ]


def splits_said(text: str) -> list[str]:
    """Splits of which a text says that all prompts are cut; a screen may have broken its lines."""
    lines = " ".join(text.split()).replace("(task.truncation_side=left)", "\n")
    return [split for split in SPLITS if re.search(CUT % split, lines)]


def test_plan_says_it(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *command(model, tmp_path)]) == 0
    assert splits_said(capsys.readouterr().out) == [*SPLITS]


def test_train_says_it_before_it_begins_and_in_the_log(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed: list[str] = []

    def interrupted(*_: Any) -> bool:
        printed.append("".join(capsys.readouterr()))
        return True

    monkeypatch.setattr("services.training.train.train._run", interrupted)
    try:
        train.run(command(model, tmp_path))
    finally:
        close_log()
    log = (tmp_path / "numbers" / "log.txt").read_text()
    assert [splits_said(text) for text in (*printed, log)] == [[*SPLITS]] * 2


def test_evaluate_says_it_of_its_split_alone(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "evaluate_model", lambda *_: (Evaluation({}, []), 0))
    assert evaluate.run([*command(model, tmp_path), "--split", "test"]) == 0
    assert splits_said(capsys.readouterr().err) == ["test"]


def test_annotate_says_it(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = "{name: 'tests.services.annotated_rows:Pairs', num: 10}"
    options = [f"task={pairs}", "reward=length", f"output={tmp_path / 'out'}", "executor=here"]
    options += [f"reference={model}", "rollout.max_prompt_tokens=1", "rollout.max_tokens=4"]
    assert cli.main(["annotate", *options, "rollout.engine=transformers", "learner.device=cpu"]) == 0
    assert splits_said("".join(capsys.readouterr())) == ["train"]
