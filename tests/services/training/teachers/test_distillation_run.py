"""Runs whose teacher is behind an address: the numbers of one in the learner, and a server that fails."""

from pathlib import Path
from typing import Any

import pytest

from contracts.settings import build
from services.config.settings import RunSettings
from services.runs.folder import RunFolder
from tests.local_run import train_here
from tests.models import make_tiny_model
from tests.services.training.teachers.test_asking import Server, address, serving

pytestmark = pytest.mark.slow

ITERATIONS = 3


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A student and a sharper teacher, with one vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    return make_tiny_model(folder / "student"), make_tiny_model(folder / "teacher", seed=1, sharpness=3.0)


def settings(student: Path, output: Path, algorithm: dict[str, Any], **more: Any) -> RunSettings:
    drawn = {"max_tokens": 4, "engine": "transformers", "kv_cache_gib": 0.01, "deterministic": True}
    whole = {
        "model": {"path": str(student), **more},
        "output_dir": str(output),
        "run_name": "run",
        "task": {"name": "increasing_numbers", "num_prompts": 16, "num_eval_prompts": 2},
        "metrics": [],
        "algorithm": {"name": "distillation", "learning_rate": 1e-3, **algorithm},
        "rollout": {**drawn, "prompts_per_iteration": 4, "group_size": 1},
        "learner": {"device": "cpu", "num_threads": 1},
        "iterations": ITERATIONS,
        "evaluate_every": "never",
        "save_every": 0,
        "tracking": {"enabled": False},
    }
    return build(RunSettings, whole, where="")


def curve(folder: RunFolder) -> list[float]:
    return [row["loss/policy"] for row in folder.training_info()]


def remote(server: Server, **options: Any) -> dict[str, Any]:
    return {"teacher": {"url": address(server), **options}}


def test_a_teacher_that_tells_its_vocabulary_is_the_one_in_the_learner(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    student, teacher = models
    local = curve(train_here(settings(student, tmp_path / "local", {}, reference={"path": str(teacher)})))
    with serving(teacher) as server:
        size = server.lm.config.vocab_size
        remotely = curve(train_here(settings(student, tmp_path / "told", remote(server, top_k=size))))
    assert remotely == pytest.approx(local, rel=1e-3) and local[0] > 0.1


def test_a_run_goes_on_with_the_same_batch_behind_failing_calls(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    student, teacher = models
    with serving(teacher) as server:
        plain = train_here(settings(student, tmp_path / "plain", remote(server)))
        server.failures = [503, 500, 502]
        again = train_here(settings(student, tmp_path / "again", remote(server)))
    assert curve(again) == curve(plain)
    assert sum(row["teacher/repeated_calls"] for row in again.rollout_info()) == 3
    assert all(row["teacher/scored"] == 1.0 for row in again.rollout_info())
