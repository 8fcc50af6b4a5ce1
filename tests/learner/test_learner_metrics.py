"""Measurements of the learner: metrics, progress, and what follows from them."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from learner.algorithms.ppo import PPO
from learner.algorithms.supervised import Supervised
from learner.optimization.kl_control import KLSettings
from tests.learner.tiny import (
    make_learner,
    perturb,
    plain_logits,
    plain_logprobs,
    random_rollouts,
    without_times,
)


def test_the_metrics_of_a_batch_are_those_computed_by_hand(models: dict[str, Path]) -> None:
    learner = make_learner(
        models["gpt2"], PPO(kl=KLSettings(coefficient=0.1, target=0.05), num_epochs=3, minibatch_size=4)
    )
    perturb(learner.pair.lm)
    learner.version = 6
    rollouts = [
        dataclasses.replace(
            one, turns=tuple(dataclasses.replace(t, weight_versions=(4,) * len(t.tokens)) for t in one.turns)
        )
        for one in random_rollouts(8)
    ]
    assert learner.reference is not None
    with torch.no_grad():
        old = [plain_logprobs(learner.pair.lm, one) for one in rollouts]
        ref = [plain_logprobs(learner.reference.lm, one) for one in rollouts]
        logits = torch.cat([plain_logits(learner.pair.lm, one) for one in rollouts])
    metrics = learner.update(rollouts)
    num_tokens = sum(one.num_generated for one in rollouts)
    total_kl = float((torch.cat(old) - torch.cat(ref)).sum())
    drift = -1.0 - torch.cat(old)  # behaviour log-probabilities are -1 throughout
    expected = {
        "kl/mean": total_kl / num_tokens,
        "kl/sequence": total_kl / 8,
        "kl/coefficient": 0.1,
        "entropy": float(torch.distributions.Categorical(logits=logits).entropy().mean()),
        "mismatch/max_ratio": math.exp(drift.abs().max()),
        "mismatch/kl": float(((-drift).exp() - 1 + drift).mean()),
        "staleness/mean": 2.0,
        "tokens/trained": 3 * num_tokens,
        "update/steps": 6,
        "update/epochs": 3,
        "update/stopped_early": 0,
        "learning_rate/factor": 1,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert metrics["time/score_s"] > 0 and metrics["time/update_s"] > 0
    assert learner.kl_coefficient == pytest.approx(
        0.1 * (1 + 0.1 * max(-0.2, min(0.2, total_kl / num_tokens / 0.05 - 1)))
    )
    assert learner.version == 7


def test_the_coefficient_that_adapted_penalises_the_next_batch(models: dict[str, Path]) -> None:
    learner = make_learner(models["gpt2"], PPO(kl=KLSettings(coefficient=0.1, target=0.5), num_epochs=1))
    reported = [learner.update(random_rollouts(4))["kl/coefficient"] for _ in range(2)]
    assert reported == pytest.approx([0.1, 0.098])  # the policy still is the reference: 2 % less


def test_the_learning_rate_follows_the_iterations(models: dict[str, Path]) -> None:
    learner = make_learner(
        models["gpt2"],
        PPO(learning_rate=1e-3, num_epochs=1),
        iterations=4,
        lr_schedule="linear",
        warmup_iterations=1,
    )
    factors = [learner.update(random_rollouts(3))["learning_rate/factor"] for _ in range(4)]
    assert factors == pytest.approx([1, 1, 2 / 3, 1 / 3])
    assert [g["lr"] for g in learner.optimizer.param_groups] == pytest.approx([1e-3 / 3] * 4)


def test_an_offline_update_reports_no_divergence_and_no_values(models: dict[str, Path]) -> None:
    metrics = make_learner(models["gpt2"], Supervised()).update(random_rollouts(4))
    assert set(without_times(metrics)) == {
        *("loss/policy", "gradient_norm/policy", "gradient_norm/critic", "learning_rate/factor"),
        *("update/steps", "update/epochs", "update/stopped_early", "tokens/trained"),
        "rollouts/trained",
    }


def test_progress_counts_rollouts_of_all_epochs(models: dict[str, Path]) -> None:
    learner = make_learner(models["gpt2"], PPO(num_epochs=2, minibatch_size=4))
    seen = [learner.progress()]
    learner.optimizer.register_step_post_hook(lambda *_: seen.append(learner.progress()))
    learner.update(random_rollouts(6))
    seen.append(learner.progress())
    idle = ("idle", 0, 1)
    assert seen == [idle, *[("update", done, 12) for done in (4, 6, 10, 12)], idle]
