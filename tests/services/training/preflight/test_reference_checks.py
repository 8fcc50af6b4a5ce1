"""A teacher must read the student's tokens: its vocabulary, kind and window are checked before the start."""

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.settings import build
from services.config.settings import RunSettings
from services.training.preflight import preflight
from services.training.preflight.capacity.memory_model import MemoryNeeds
from services.training.preflight.checks.reference_checks import num_parameters_of_reference
from tests.models import make_tiny_model


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("student"))


def settings(student: Path, teacher: Path, **rollout: Any) -> RunSettings:
    whole = {
        "model": {"path": str(student), "reference": {"path": str(teacher)}},
        "algorithm": "distillation",
        "task": "increasing_numbers",
        "metrics": [],
        "rollout": {"max_tokens": 8, "engine": "transformers", **rollout},
        "tracking": {"enabled": False},
    }
    return build(RunSettings, whole, where="")


def refusal(student: Path, teacher: Path, **rollout: Any) -> str:
    with pytest.raises(InputError) as caught:
        preflight.check(settings(student, teacher, **rollout))
    return str(caught.value)


def test_a_teacher_of_the_same_vocabulary_will_do(student: Path, tmp_path: Path) -> None:
    teacher = make_tiny_model(tmp_path / "teacher", architecture="gpt2", seed=1)
    run = settings(student, teacher)
    preflight.check(run)
    count = num_parameters_of_reference(run.model)
    assert count and count > 10_000
    needs = MemoryNeeds(run.model, run.algorithm, run.learner, run.rollout, 10**6, reference_parameters=count)
    assert needs.of_learner()["reference model"] == 4 * count


def test_another_vocabulary_is_told_by_its_first_difference(student: Path, tmp_path: Path) -> None:
    words = tuple(str(number) for number in range(100))
    other = make_tiny_model(tmp_path / "other", vocab=("zero", *words[1:50]))
    message = refusal(student, other)
    assert f"model.reference.path={other} has another vocabulary than model.path={student}" in message
    assert "got 53 tokens, expected 103; token 3 is 'zero', expected '0'" in message


def test_another_kind_of_model_is_refused(student: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", architecture="t5")
    assert "got an encoder-decoder; expected a causal model" in refusal(student, other)


def test_a_shorter_window_leaves_less_room_for_prompts(student: Path, tmp_path: Path) -> None:
    short = make_tiny_model(tmp_path / "short", window=9)
    preflight.check(settings(student, short, max_tokens=3))
    assert "leaves room for 1 beside the response" in refusal(student, short, max_tokens=8)


def test_a_teacher_that_is_not_there_is_called_by_its_key(student: Path, tmp_path: Path) -> None:
    assert "model.reference.path=" in refusal(student, tmp_path / "nothing")
    broken = make_tiny_model(tmp_path / "broken")
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "model_type": "nothing"}))
    assert "model.reference.path=" in refusal(student, broken)
