"""`whetstone train` with a reward that gives no scores: refused before the first text is written."""

from pathlib import Path

import pytest

from tests.models import make_tiny_model
from tests.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(900)]


def test_a_reward_that_answers_with_a_dict_ends_the_start_with_exit_code_2(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    rest = ("rollout.engine=transformers", "metrics=[]", "tracking.enabled=false", "iterations=1")
    run = Run(tmp_path, "refused", f"model.path={model}", *rest, "reward=tests.reward_servers.graders:Mapped")
    try:
        assert run.start().finish() == 2, run.output
        assert "reward Mapped: score() returned a dict {0.0: 'The answer is 42.'" in run.output
        assert run.folder.rollout_info() == [] == run.folder.evaluations("validation")
    finally:
        run.end()
