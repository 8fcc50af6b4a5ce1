"""Parameter groups, learning-rate schedules and gradient clipping."""

from pathlib import Path

import pytest
import torch

from contracts.errors import LearnerError
from learner.algorithms.base import OptimizerSettings
from learner.algorithms.ppo import PPO
from learner.optimizer import build_optimizer, clip_gradients, schedule_factor, set_learning_rate
from tests.learner.tiny import make_pair


@pytest.mark.parametrize("value_trunk", ["shared", "separate"])
@pytest.mark.parametrize("name", ["gpt2", "llama_tied"])
def test_matrices_decay_and_vectors_do_not_and_each_parameter_is_trained_once(
    models: dict[str, Path], name: str, value_trunk: str
) -> None:
    policy = make_pair(models[name], value_trunk=value_trunk)
    optimizer = build_optimizer(policy, PPO(optimizer=OptimizerSettings(weight_decay=0.1)))
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(decays)
    assert decays == {id(p): 0.1 if p.ndim > 1 else 0.0 for p in policy.parameters()}


def test_actor_and_critic_have_their_own_learning_rates(models: dict[str, Path]) -> None:
    policy = make_pair(models["gpt2"], value_trunk="separate")
    for decay in (0.0, 1e-6):
        algorithm = PPO(
            learning_rate=1e-4, critic_learning_rate=5e-4, optimizer=OptimizerSettings(weight_decay=decay)
        )
        optimizer = build_optimizer(policy, algorithm)
        rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
        assert {rates[id(p)] for _, p in policy.actor_parameters()} == {1e-4}
        assert {rates[id(p)] for _, p in policy.critic_parameters()} == {5e-4}


def test_without_one_of_its_own_the_critic_learns_as_fast_as_the_actor(models: dict[str, Path]) -> None:
    optimizer = build_optimizer(make_pair(models["gpt2"]), PPO(learning_rate=2e-4))
    assert {group["lr"] for group in optimizer.param_groups} == {2e-4}


@pytest.mark.parametrize(
    ("schedule", "warmup", "factors"),
    [
        ("constant", 0, [1, 1, 1, 1]),
        ("linear", 0, [1, 0.75, 0.5, 0.25]),
        ("cosine", 0, [1, 0.853553, 0.5, 0.146447]),  # ½ (1 + cos(π k / 4))
        ("constant", 2, [0.5, 1, 1, 1]),
        ("linear", 2, [0.5, 1, 1, 0.5]),  # after the warm-up, down over what is left
        ("cosine", 4, [0.25, 0.5, 0.75, 1]),
    ],
)
def test_schedules_by_hand(schedule: str, warmup: int, factors: list[float]) -> None:
    got = [schedule_factor(schedule, i, len(factors), warmup) for i in range(1, len(factors) + 1)]  # type: ignore[arg-type]
    assert got == pytest.approx(factors, abs=1e-6)


def test_the_factor_multiplies_the_base_rate_and_not_the_last_one(models: dict[str, Path]) -> None:
    optimizer = build_optimizer(make_pair(models["gpt2"]), PPO(learning_rate=1e-3, critic_learning_rate=1e-2))
    for _ in range(2):
        set_learning_rate(optimizer, 0.5)
    assert {(g["role"], g["lr"]) for g in optimizer.param_groups} == {("actor", 5e-4), ("critic", 5e-3)}


def test_a_large_critic_gradient_leaves_the_actors_alone(models: dict[str, Path]) -> None:
    policy = make_pair(models["llama"], value_trunk="separate")
    for parameters, total in ((policy.actor_parameters(), 0.25), (policy.critic_parameters(), 80.0)):
        count = sum(p.numel() for _, p in parameters)
        for _, p in parameters:
            p.grad = torch.full_like(p, total / count**0.5)  # a norm of `total` over all of them
    before = [p.grad.clone() for _, p in policy.actor_parameters() if p.grad is not None]
    norms = clip_gradients(policy, 0.5)
    assert (norms.policy, norms.critic) == (pytest.approx(0.25, rel=1e-4), pytest.approx(80.0, rel=1e-4))
    after = [p.grad for _, p in policy.actor_parameters() if p.grad is not None]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    critic = torch.cat([p.grad.flatten() for _, p in policy.critic_parameters() if p.grad is not None])
    assert float(critic.norm()) == pytest.approx(0.5, rel=1e-3)


def test_without_a_limit_gradients_are_measured_and_not_clipped(models: dict[str, Path]) -> None:
    policy = make_pair(models["llama"])
    for p in policy.parameters():
        p.grad = torch.ones_like(p)
    norms = clip_gradients(policy, None)
    assert norms.policy == pytest.approx(sum(p.numel() for p in policy.lm.parameters()) ** 0.5)
    assert norms.critic == pytest.approx(17**0.5)  # 16 weights and a bias
    assert all(bool((p.grad == 1).all()) for p in policy.parameters() if p.grad is not None)


def test_a_critic_that_got_no_gradient_has_norm_zero(models: dict[str, Path]) -> None:
    policy = make_pair(models["llama"])
    policy.lm.lm_head.weight.grad = torch.ones_like(policy.lm.lm_head.weight)
    assert clip_gradients(policy, 1.0).critic == 0.0


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_gradient_that_is_no_number_is_refused(models: dict[str, Path], broken: float) -> None:
    policy = make_pair(models["llama"])
    policy.lm.lm_head.weight.grad = torch.full_like(policy.lm.lm_head.weight, broken)
    with pytest.raises(LearnerError, match=r"the actor's gradient has norm (nan|inf).*learning_rate="):
        clip_gradients(policy, 0.5)
