"""The stream of groups with a real engine and a real learner: refills while workers write ahead."""

from pathlib import Path

import pytest

from tests.kept_rollouts import kept_in
from tests.local_run import small_run, train_here
from tests.models import make_tiny_model

pytestmark = pytest.mark.slow

ITERATIONS, PROMPTS, GROUP, STALENESS = 4, 3, 3, 2


def test_batches_are_full_each_lease_is_trained_on_once_and_none_is_too_old(tmp_path: Path) -> None:
    rollout = {"prompts_per_iteration": PROMPTS, "group_size": GROUP, "max_tokens": 6, "num_threads": 1}
    settings = small_run(
        make_tiny_model(tmp_path / "model"),
        tmp_path / "runs",
        algorithm={"name": "dapo", "max_refills": 20, "learning_rate": 1e-3},
        task={"name": "increasing_numbers", "num_prompts": 60, "num_eval_prompts": 2},
        reward="tests.services.training.loop.test_dapo_run:Rare",
        metrics=[],
        measures={"name": "tests.kept_rollouts:Kept", "file": str(tmp_path / "kept.jsonl")},
        rollout=rollout | {"order": "finished", "max_staleness": STALENESS, "engine": "transformers"},
        iterations=ITERATIONS,
    )
    rows = train_here(settings).rollout_info()
    assert [row["iteration"] for row in rows] == list(range(1, ITERATIONS + 1))
    for row in rows:
        assert row["refill/kept"] == PROMPTS and row["rollouts/trained"] == PROMPTS * GROUP
        parts = [row[f"refill/{name}"] for name in ("kept", "constant", "surplus", "lost")]
        assert sum(parts) == row["refill/leased"]
        assert row["staleness/max"] <= STALENESS and row["order/length_ratio"] > 0
    assert sum(row["refill/constant"] for row in rows) > 0
    leases = [row["lease"] for row in kept_in(tmp_path / "kept.jsonl")]
    assert len(leases) == len(set(leases)) == ITERATIONS * PROMPTS * GROUP
