"""Warning of a learning rate that moves nothing."""

import math

import pytest

from services.config.compose import run_settings
from services.training.preflight.checks.rate_checks import kl_after, rate_warnings


def warnings(*overrides: str, weights: int | None = 260_000) -> list[str]:
    run = run_settings(["model.path=m", "task=increasing_numbers", "iterations=40", *overrides])
    rollouts = run.rollout.prompts_per_iteration * run.group_size
    return rate_warnings(run.algorithm, run.model, weights, rollouts=rollouts, iterations=run.iterations)


def test_grpos_rate_moves_no_small_model() -> None:
    # 64 prompts × 8 texts are one minibatch: 40 steps. 0.08 · (1e-6 · 40)² · 260,000 = 3.3e-5
    (warning,) = warnings("algorithm=grpo")
    assert "algorithm.learning_rate=1e-06" in warning and "3.33e-05 nats a token in 40 steps" in warning
    # √(0.3 / 0.08) / (40 · √260,000) = 1.94 / 20,396 = 9.5e-5
    assert "algorithm.learning_rate=9e-05" in warning


@pytest.mark.parametrize(
    "overrides",
    [
        ("algorithm=grpo", "algorithm.learning_rate=1e-4"),
        ("algorithm=grpo", "iterations=40000"),
        ("algorithm=ppo",),
        ("algorithm=trpo",),  # its step has no rate
        ("algorithm=grpo", "model.adapter.kind=lora"),  # few weights train, at rates of their own
    ],
)
def test_a_rate_that_may_do_has_no_warning(overrides: tuple[str, ...]) -> None:
    assert warnings(*overrides) == []


def test_a_large_model_needs_a_low_rate() -> None:
    assert warnings("algorithm=grpo", weights=500_000_000) == []


def test_minibatches_and_epochs_are_steps() -> None:
    # 512 texts in minibatches of 100 are 6 steps an epoch, 2 epochs: 480 steps
    (warning,) = warnings(
        *("algorithm=grpo", "algorithm.minibatch_size=100", "algorithm.num_epochs=2"),
        "algorithm.learning_rate=1e-7",
    )
    assert "in 480 steps" in warning


def test_a_model_of_unknown_size_has_no_warning() -> None:
    assert warnings("algorithm=grpo", weights=None) == []


def test_the_rule_has_the_measured_kl() -> None:
    """Measured: 0.275 nats a token at 1e-4, 0.004 at 1e-5, after 40 steps of 260,000 weights."""
    assert kl_after(1e-4, 40, 260_000) == pytest.approx(0.275, rel=0.25)
    assert math.isclose(kl_after(1e-5, 40, 260_000), 0.004, rel_tol=0.25)
