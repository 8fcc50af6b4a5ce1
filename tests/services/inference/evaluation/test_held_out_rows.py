"""Measures of a run's held-out rows outside of training: whose annotation they need, and what is missing."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from learner.learner import Learner
from services.config.compose import compose
from services.config.settings import RunSettings
from services.inference.evaluation.configuration import settings_for
from services.inference.evaluation.measure import with_reference
from services.runs.folder import RunFolder
from services.training.loop.evaluations.responses import ReadsHeldOut
from services.training.sources.own_rows import rows_of
from tests.local_run import small_run, train_here
from tests.models import make_tiny_model

Rows = list[dict[str, Any]]
PAIRS = [{"prompt": f"{i} 1", "chosen": f" {i} 77", "rejected": f" {i} {i + 1}"} for i in range(12)]
LABELLED = [
    {"prompt": row["prompt"], "completion": row[column], "label": column == "chosen"}
    for row in PAIRS
    for column in ("chosen", "rejected")
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


def written(file: Path, rows: Rows) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def settings(
    model: Path, output: Path, name: str, rows: Rows, held_out: Rows, **sections: Any
) -> RunSettings:
    data = output / "data"
    for split, of_split in (("train", rows), ("validation", held_out), ("test", held_out)):
        written(data / f"{split}.jsonl", of_split)
    composed = compose([f"data={data}", f"algorithm={name}", f"model.path={model}"])
    whole = {
        "algorithm": {"name": name, "learning_rate": 1e-3},
        "task": composed["task"],
        "data": composed["data"],
        "reward": None,
        "iterations": 3,
        "rollout": {"prompts_per_iteration": 4, "max_tokens": 6},
        **sections,
    }
    return small_run(model, output / "runs", **whole)


def measured(settings: RunSettings, folder: RunFolder | None = None) -> tuple[dict[str, float], list[str]]:
    """The measures of validation as `whetstone evaluate` takes them, and the warnings."""
    warnings: list[str] = []

    def measure(rollouts: Any) -> dict[str, float]:
        run = RunFolder(settings.run_folder)
        whole = with_reference(settings.model, settings.algorithm, run)
        one = Learner(whole, settings.algorithm, settings.learner, seed=settings.seed, iterations=1)
        return one.measure(rollouts)

    responses = ReadsHeldOut(settings, warnings.append)(("validation",), measure)
    assert responses is not None
    return responses("validation"), warnings


@pytest.fixture(scope="module")
def runs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """A finished run of each."""
    return {
        name: train_here(settings(model, tmp_path_factory.mktemp(name), name, rows, rows[:4]))
        for name, rows in (("dpo", PAIRS), ("kto", LABELLED))
    }


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_a_run_that_was_moved_is_measured_as_training_did(
    runs: dict[str, RunFolder], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = runs[name].evaluations("val")[-1]["metrics"]
    assert expected["rewards/margin"] > 0.01  # it has learned, so another reference would show
    moved = tmp_path / "elsewhere"
    shutil.copytree(runs[name].path, moved)
    monkeypatch.chdir(moved)
    metrics, warnings = measured(settings_for(RunFolder(Path(".")), []))
    assert warnings == []
    assert metrics["loss"] == pytest.approx(expected["loss"], abs=1e-4)
    assert metrics["rewards/margin"] == pytest.approx(expected["rewards/margin"], abs=1e-4)


def test_a_model_of_another_vocabulary_has_no_measures(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other")
    vocabulary = json.loads((other / "tokenizer.json").read_text())
    names = vocabulary["model"]["vocab"]
    last = list(names)[-2:]
    names[last[0]], names[last[1]] = names[last[1]], names[last[0]]
    (other / "tokenizer.json").write_text(json.dumps(vocabulary))
    metrics, (warning,) = measured(settings_for(runs["dpo"], [f"model.path={other}"]))
    assert metrics == {} and "evaluations do not measure validation responses" in warning
    assert "whose vocabulary differs" in warning


def test_rows_without_an_annotation_have_no_measures(model: Path, tmp_path: Path) -> None:
    metrics, (warning,) = measured(settings(model, tmp_path, "dpo", PAIRS, PAIRS[:4]))
    assert metrics == {} and "has no log-probabilities of these rows under the start model" in warning


def test_rows_are_read_again_once_their_file_is_another(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, text in (("a", "first"), ("b", "second")):
        written(tmp_path / place / "train.jsonl", [{"prompt": "1", "response": text}] * 10)
    data = settings(model, tmp_path, "dpo", PAIRS, PAIRS[:4]).data
    assert data is not None
    near = data.model_copy(update={"files": "train.jsonl"})
    for place, text in (("a", "first"), ("b", "second")):
        monkeypatch.chdir(tmp_path / place)
        assert {row.response for row in rows_of(near, "train").rows} == {text}
    written(Path("train.jsonl"), [{"prompt": "1", "response": "third"}] * 10)
    assert {row.response for row in rows_of(near, "train").rows} == {"third"}
