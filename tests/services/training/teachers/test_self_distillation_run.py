"""Runs with the policy as its own teacher and a reward that comments: whole, resumed, nothing to read."""

from pathlib import Path
from typing import Any

import pytest

from contracts.scores import Grade
from services.config.settings import RunSettings
from services.runs.folder import RunFolder
from tests.local_run import small_run, train_here
from tests.models import make_tiny_model

pytestmark = pytest.mark.slow

TIMES = ("time/", "throughput/")
TEMPLATE = {"template": "{prompt}{answer}{comment}"}


class Comments:
    """Rewards an even last number, and says in words what was wrong."""

    def score(self, samples: Any) -> list[Grade]:
        return [self._grade(sample.text.split()[-1:]) for sample in samples]

    def _grade(self, last: list[str]) -> Grade:
        is_even = bool(last) and last[0].isdigit() and int(last[0]) % 2 == 0
        return Grade(float(is_even), {"even": float(is_even)}, "" if is_even else "2 4 6 8")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def settings(model: Path, output: Path, iterations: int, **options: Any) -> RunSettings:
    return small_run(
        model,
        output,
        task={"name": "increasing_numbers", "num_prompts": 16, "num_eval_prompts": 2},
        reward="tests.services.training.teachers.test_self_distillation_run:Comments",
        metrics=[],
        algorithm={"name": "self_distillation", "learning_rate": 1e-3, **TEMPLATE, **options},
        rollout={"prompts_per_iteration": 3, "group_size": 4, "deterministic": True},
        iterations=iterations,
        save_every=1,
    )


def rows(folder: RunFolder) -> list[dict[str, Any]]:
    """Both lines of each iteration, without what the clock says."""
    return [
        {key: value for key, value in (info | training).items() if not key.startswith(TIMES)}
        for info, training in zip(folder.rollout_info(), folder.training_info(), strict=True)
    ]


def test_a_resumed_run_has_the_numbers_of_a_whole_one(model: Path, tmp_path: Path) -> None:
    whole = rows(train_here(settings(model, tmp_path / "whole", 4, weight=0.5)))
    train_here(settings(model, tmp_path / "parts", 2, weight=0.5))
    parts = rows(train_here(settings(model, tmp_path / "parts", 4, weight=0.5)))
    ignored = {"learning_rate/factor"}
    assert [{k: v for k, v in row.items() if k not in ignored} for row in parts] == [
        {k: v for k, v in row.items() if k not in ignored} for row in whole
    ]
    assert all(row["loss/distillation"] > 0 for row in whole)
    assert all(0 < row["teacher/comments"] <= row["teacher/taught"] <= 1 for row in whole)
    assert all("reward/Comments/even/mean" in row or any("even" in key for key in row) for row in whole)


def test_a_run_whose_teacher_has_nothing_to_read_counts_it(model: Path, tmp_path: Path) -> None:
    (row,) = rows(train_here(settings(model, tmp_path, 1, reads="answer", answer_from=2.0)))
    assert row["teacher/nothing_to_read"] == 1.0 and row["loss/distillation"] == 0.0
