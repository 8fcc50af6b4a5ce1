"""Updates of one step: their own forward pass gives old log-probabilities, and nothing else changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.rollout import Rollout, Sampling
from learner.algorithms.base import Algorithm, OptimizerSettings
from learner.algorithms.cispo import CISPO
from learner.algorithms.dapo import DAPO
from learner.algorithms.dr_grpo import DrGRPO
from learner.algorithms.grpo import GRPO
from learner.algorithms.gspo import GSPO
from learner.algorithms.ppo import PPO
from learner.algorithms.rloo import RLOO
from learner.kl_control import KLSettings
from learner.learner import Learner
from tests.learner.tiny import make_learner, random_rollouts, snapshot, without_times

SMOOTH = OptimizerSettings(eps=1e-4)
ONE_STEP: dict[str, Algorithm] = {
    "grpo": GRPO(optimizer=SMOOTH, learning_rate=1e-3),
    "grpo k1": GRPO(
        optimizer=SMOOTH,
        learning_rate=1e-3,
        kl=KLSettings(placement="loss", estimator="k1", coefficient=0.1),
    ),
    "dr_grpo": DrGRPO(optimizer=SMOOTH, learning_rate=1e-3),
    "gspo": GSPO(optimizer=SMOOTH, learning_rate=1e-3),
    "dapo": DAPO(optimizer=SMOOTH, learning_rate=1e-3),
    "cispo": CISPO(optimizer=SMOOTH, learning_rate=1e-3),
}


def groups_of_four() -> list[Rollout]:
    return [replace(each, group=number // 4) for number, each in enumerate(random_rollouts(12))]


def passes(learner: Learner) -> list[str]:
    """Note the phase of each pass of the policy's own trunk."""
    noted: list[str] = []
    learner.pair.policy.trunk.register_forward_hook(lambda *_: noted.append(learner.progress()[0]))
    return noted


@pytest.mark.parametrize("name", ONE_STEP)
@pytest.mark.parametrize("budget", [60, 10**6])
def test_weights_and_metrics_are_those_of_an_own_pass(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str, budget: int
) -> None:
    found = []
    for by_update in (True, False):
        learner = make_learner(models["llama"], ONE_STEP[name], token_budget=budget)
        if not by_update:
            monkeypatch.setattr("learner.learner.scores_come_with_the_update", lambda *_, **__: False)
        metrics = [without_times(learner.update(groups_of_four())) for _ in range(2)]
        found.append((snapshot(learner.pair), metrics))
    (weights, metrics), (expected_weights, expected) = found
    torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=1e-5)
    assert [each.keys() for each in metrics] == [each.keys() for each in expected]
    for got, known in zip(metrics, expected, strict=True):
        assert got == pytest.approx(known, abs=1e-4, rel=1e-3)


def test_the_policys_trunk_runs_once_a_batch_and_never_to_score(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], ONE_STEP["grpo"])
    noted = passes(learner)
    learner.update(groups_of_four())
    assert len(noted) == 1


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (GRPO(num_epochs=2), {}),
        (GRPO(minibatch_size=4), {}),
        (GRPO(filter_truncated=True), {}),
        (GRPO(), {"sampling": Sampling(max_tokens=32, top_k=5)}),
        (RLOO(), {}),  # its KL is in the reward
        (PPO(num_epochs=1, minibatch_size=None), {}),  # its critic's values come before the update
    ],
)
def test_where_scores_are_needed_before_the_policy_has_its_pass(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm, options: dict[str, Any]
) -> None:
    learner = make_learner(models["llama"], algorithm, **options)
    scored: list[bool] = []
    score = learner._score
    monkeypatch.setattr(
        learner, "_score", lambda batch: (found := score(batch), scored.append(found.by_update))[0]
    )
    learner.update(groups_of_four())
    assert scored == [False]
