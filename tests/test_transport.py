"""A whole run over gloo: the numbers are those by objects, and sampler and learner agree throughout."""

from pathlib import Path

import pytest

from tests.models import make_tiny_model
from tests.runs import Run, results

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(1200)]
OPTIONS = (
    "rollout.engine=vllm",
    "iterations=20",
    "rollout.prompts_per_iteration=8",
    "rollout.max_tokens=12",
    "algorithm.num_epochs=1",
    "save_every=0",
    "metrics=[]",
    "tracking.enabled=false",
)


def test_a_run_is_the_same_over_gloo(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", sharpness=3.0)
    by_transport = {}
    for transport in ("objects", "gloo"):
        run = Run(tmp_path, transport, f"model.path={model}", f"learner.transport={transport}", *OPTIONS)
        try:
            assert run.start().finish() == 0, run.output
        finally:
            run.end()
        assert "broke off" not in run.output
        rows, generated = run.folder.training_info(), run.folder.rollout_info()
        assert len(rows) == 20 and all(row["mismatch/max_ratio"] < 1 + 1e-4 for row in generated)
        by_transport[transport] = results(rows)
    assert by_transport["gloo"] == by_transport["objects"]
