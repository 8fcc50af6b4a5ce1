"""Results of `whetstone train-reward`: what is said of an interruption, and the command that is printed."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from services.training.reward_training.results import RewardResults


def test_an_interruption_before_training_leaves_the_earlier_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    message = RewardResults(tmp_path, {}, ("low", "high")).when_interrupted()
    assert message == f"interrupted before training began: the earlier model in {tmp_path}/model is unchanged"


def test_only_a_classifier_of_the_intents_is_called_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["inform", "question", "directive", "commissive"]
    right, wrong = (RewardResults(tmp_path, {}, labels) for labels in (names, sorted(names)))
    assert "reward=intent_accuracy" in str(right.command("last_utterance"))
    wrong.finish(Console(), "last_utterance", "1 s")
    printed = capsys.readouterr().out
    assert (
        "whetstone train model.path" not in printed
        and json.loads((tmp_path / "results.json").read_text())["command"] is None
    )
    assert "data.label_names=[inform,question,directive,commissive]" in printed
