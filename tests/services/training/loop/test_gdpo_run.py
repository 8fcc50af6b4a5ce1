"""`algorithm=gdpo` from its rewards to its weights: each reward's own value reaches the learner, and the
bonus's coefficient moves.
"""

from pathlib import Path

import pytest

from contracts.settings import build
from learner.algorithms.gdpo import GDPO
from learner.algorithms.inputs import CreditInputs
from services.config.settings import RunSettings
from tests.local_run import train_here
from tests.models import make_tiny_model

pytestmark = pytest.mark.slow


def test_each_rewards_value_and_weight_reach_the_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[CreditInputs] = []
    advantages = GDPO.advantages
    monkeypatch.setattr(
        GDPO, "advantages", lambda self, batch: (seen.append(batch), advantages(self, batch))[1]
    )
    settings = build(
        RunSettings,
        {
            "model": {"path": str(make_tiny_model(tmp_path / "model"))},
            "task": {"name": "increasing_numbers", "num_prompts": 8, "num_eval_prompts": 2},
            "reward": ["increasing_numbers", {"name": "length", "weight": 0.1, "clip": [0, 3]}],
            "metrics": [],
            "algorithm": {"name": "gdpo", "learning_rate": 1e-3, "entropy_target": 9, "entropy_step": 0.001},
            "rollout": {
                "prompts_per_iteration": 2,
                "group_size": 4,
                "max_tokens": 6,
                "engine": "transformers",
            },
            "learner": {"num_threads": 1, "device": "cpu"},
            "iterations": 3,
            "evaluate_every": 0,
            "save_every": 0,
            "tracking": {"enabled": False},
            "output_dir": str(tmp_path / "out"),
            "run_name": "run",
        },
        where="",
    )
    folder = train_here(settings)
    for inputs in seen:
        assert inputs.terms is not None
        values_BK, weights_BK = inputs.terms.values_BK, inputs.terms.weights_BK
        assert weights_BK.unique(dim=0).tolist() == [[1.0, 0.1]]
        assert values_BK[:, 1].max() <= 3  # clipped, before the weight
        totals = (values_BK * weights_BK).sum(-1)
        assert totals.tolist() == pytest.approx(inputs.rewards_BT.sum(-1).tolist(), abs=1e-5)
    assert len(seen) == 3
    bonuses = [row["entropy_coefficient"] for row in folder.training_info()]
    assert bonuses == pytest.approx([0.0, 0.001, 0.002])  # nothing was measured before the first update
