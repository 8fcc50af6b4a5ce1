"""Rollouts that are scored before the rest of their batch: the same update, and no pass twice."""

from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.rollout import Sampling
from learner.algorithms.base import Algorithm
from learner.algorithms.grpo import GRPO
from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from learner.algorithms.rloo import RLOO
from learner.algorithms.supervised import Supervised
from learner.learner import Learner
from learner.optimization.kl_control import KLSettings
from tests.learner.tiny import SMOOTH, make_learner, perturb, random_rollouts, snapshot, without_times

ALGORITHMS: dict[str, Algorithm] = {
    "ppo": PPO(learning_rate=1e-3, optimizer=SMOOTH),
    "ppo, KL of the vocabulary": PPO(
        learning_rate=1e-3, optimizer=SMOOTH, kl=KLSettings(estimator="full", coefficient=0.1)
    ),
    "ppo, normalised values": PPO(learning_rate=1e-3, optimizer=SMOOTH, normalize_values=True),
    "rloo": RLOO(learning_rate=1e-3, optimizer=SMOOTH),
    "grpo, two epochs": GRPO(learning_rate=1e-3, optimizer=SMOOTH, num_epochs=2),
}


def read(learner: Learner) -> list[int]:
    """Note how many sequences each pass of the policy's trunk reads without a gradient."""
    noted: list[int] = []

    def note(_module: Any, _given: Any, kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            noted.append(len(kwargs["input_ids"]))

    learner.pair.policy.trunk.register_forward_pre_hook(note, with_kwargs=True)
    return noted


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("parts", [[range(3), range(3, 7)], [range(12)], [[11, 2]]])
def test_updates_are_those_of_scores_at_once(models: dict[str, Path], name: str, parts: list[Any]) -> None:
    updates, rollouts = [], random_rollouts(12)
    for early in (True, False):
        learner = make_learner(models["llama"], ALGORITHMS[name])
        perturb(learner.pair.lm)
        metrics = []
        for _ in range(2):
            for part in parts if early else ():
                learner.score_early([rollouts[row] for row in part], 12)
            metrics.append(without_times(learner.update(rollouts)))
        updates.append((snapshot(learner.pair), metrics))
    (weights, metrics), (expected_weights, expected) = updates
    torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=1e-5)
    for got, known in zip(metrics, expected, strict=True):
        assert got == pytest.approx(known, abs=1e-4, rel=1e-3)


def test_no_rollout_is_scored_twice(models: dict[str, Path]) -> None:
    learner, rollouts = make_learner(models["llama"], ALGORITHMS["rloo"]), random_rollouts(12)
    noted = read(learner)
    learner.score_early(rollouts[:5], 12)
    learner.update(rollouts)
    assert sum(noted) == 12


def test_scores_of_older_weights_are_forgotten(models: dict[str, Path]) -> None:
    learner, rollouts = make_learner(models["llama"], ALGORITHMS["rloo"]), random_rollouts(12)
    learner.score_early(rollouts[:5], 12)
    learner.version += 1
    noted = read(learner)
    learner.update(rollouts)
    assert sum(noted) == 12


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (NLPO(), {}),
        (PPO(), {"sampling": Sampling(max_tokens=32, top_k=5)}),
        (GRPO(), {}),  # its scores come with the update
        (Supervised(), {}),
    ],
)
def test_where_nothing_can_be_scored_early_nothing_is_read(
    models: dict[str, Path], algorithm: Algorithm, options: dict[str, Any]
) -> None:
    learner = make_learner(models["llama"], algorithm, **options)
    noted = read(learner)
    learner.score_early(random_rollouts(4), 12)
    assert noted == []
