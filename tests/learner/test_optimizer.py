"""Parameter groups, learning-rate schedules and gradient clipping."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.errors import LearnerError
from learner.algorithms.base import OptimizerSettings
from learner.algorithms.nll import NLL
from learner.algorithms.ppo import PPO
from learner.models.actor_critic import ActorCritic
from learner.optimization.optimizer import build_optimizer, clip_gradients, decays, set_learning_rate
from learner.optimization.rate_schedule import Schedule, schedule_factor
from learner.settings import LearnerSettings
from tests.learner.seq2seq import Name
from tests.learner.tiny import SMOOTH, make_learner, make_pair, random_rollouts, rollout, snapshot


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


def test_steps_in_one_kernel_are_those_of_adamw(models: dict[str, Path]) -> None:
    """The oracle is PyTorch's plain loop over the same gradients."""
    options = OptimizerSettings(weight_decay=0.1)
    ours, theirs = make_pair(models["gpt2"]), make_pair(models["gpt2"])
    fused = build_optimizer(ours, PPO(learning_rate=0.01, optimizer=options))
    assert fused.defaults["fused"]
    plain = build_optimizer(theirs, PPO(learning_rate=0.01, optimizer=options))
    for group in plain.param_groups:
        group["fused"], group["foreach"] = False, False
    for step in range(3):
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.grad = torch.randn(mine.shape, generator=torch.Generator().manual_seed(step))
            other.grad = mine.grad.clone()
        fused.step()
        plain.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_a_matrix_with_strides_of_its_own_is_stepped_by_the_plain_loop(models: dict[str, Path]) -> None:
    """The kernel reads memory in order, whatever the strides of a parameter and of its moments."""
    pair = make_pair(models["gpt2"])
    matrix = pair.lm.get_input_embeddings().weight
    assert build_optimizer(pair, PPO()).defaults["fused"]
    matrix.data = matrix.data.T.contiguous().T
    assert not build_optimizer(pair, PPO()).defaults["fused"]


def test_moments_of_a_plain_loop_go_on_in_one_kernel(models: dict[str, Path], tmp_path: Path) -> None:
    """So does a run that began before the kernel was used."""
    learner = make_learner(models["gpt2"], PPO(learning_rate=1e-3, optimizer=SMOOTH))
    for group in learner.optimizer.param_groups:
        group["fused"] = False
    learner.update(random_rollouts(8))
    (tmp_path / "checkpoint").mkdir()
    learner.save(str(tmp_path / "checkpoint"))
    resumed = make_learner(models["gpt2"], PPO(learning_rate=1e-3, optimizer=SMOOTH))
    resumed.load(str(tmp_path / "checkpoint"))
    assert all(group["fused"] for group in resumed.optimizer.param_groups)
    for one in (learner, resumed):
        one.update(random_rollouts(8, seed=1))
    ours, theirs = snapshot(resumed.pair), snapshot(learner.pair)
    for key, value in ours.items():
        torch.testing.assert_close(value, theirs[key], rtol=1e-5, atol=1e-6)


def test_adams_first_step_is_the_learning_rate(models: dict[str, Path]) -> None:
    pair = make_pair(models["gpt2"])
    optimizer = build_optimizer(pair, PPO(learning_rate=0.1))
    before = pair.critic.head.bias.clone()
    for parameter in pair.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    # whatever the gradient's size
    torch.testing.assert_close(before - pair.critic.head.bias, torch.full((1,), 0.1))


def decayed(pair: ActorCritic, **options: Any) -> set[str]:
    """The names of the language model's parameters on which weight decay acts."""
    optimizer = build_optimizer(pair, PPO(optimizer=OptimizerSettings(weight_decay=0.1, **options)))
    ids = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(pair.parameters()))
    return {name for name, p in pair.lm.named_parameters() if id(p) in ids}


def everyone(models: dict[str, Path], seq2seq: dict[Name, Path]) -> list[Path]:
    return [models["gpt2"], models["llama"], models["opt"], *seq2seq.values()]


def test_what_decays_by_default_is_what_decays_in_hugging_faces_trainer(
    models: dict[str, Path], seq2seq: dict[Name, Path]
) -> None:
    """Its rule of version 5, as its import alone takes half a minute."""
    spared_names = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
    for path in everyone(models, seq2seq):
        pair = make_pair(path)
        norms = [name for name, module in pair.lm.named_modules() if isinstance(module, torch.nn.LayerNorm)]
        spared = {f"{name}.{which}" for name in norms for which in ("weight", "bias")}
        named = {name for name, _ in pair.lm.named_parameters()}
        assert decayed(pair) == {name for name in named - spared if not spared_names.search(name.lower())}


def test_what_decays_in_rl4lms_and_in_lolrl(models: dict[str, Path], seq2seq: dict[Name, Path]) -> None:
    for path in everyone(models, seq2seq):
        pair = make_pair(path)
        names = {name for name, _ in pair.lm.named_parameters()}
        spared = {name for name in names if "bias" in name or "LayerNorm.weight" in name}
        assert decayed(pair, decays="all_but_biases") == names - spared
        assert decayed(pair, decays="all") == names
        assert decayed(pair) < names - spared  # norms, which neither calls LayerNorm


def test_a_norm_called_layer_norm_is_spared_as_in_rl4lms() -> None:
    norm = torch.nn.Parameter(torch.ones(4))
    name = "bert.encoder.layer.0.output.LayerNorm.weight"
    assert decays(name, norm, "all")
    assert not decays(name, norm, "matrices") and not decays(name, norm, "all_but_biases")


def test_what_learns_from_data_decays_all_as_published(models: dict[str, Path]) -> None:
    optimizer = build_optimizer(make_pair(models["gpt2"]), NLL())
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.01}


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


@pytest.mark.parametrize(("schedule", "warmup"), [("linear", 0), ("cosine", 1)])
def test_a_schedule_may_end_above_nothing(schedule: Schedule, warmup: int) -> None:
    to_0 = [schedule_factor(schedule, i, 9, warmup) for i in range(1, 10)]
    to_half = [schedule_factor(schedule, i, 9, warmup, 0.5) for i in range(1, 10)]
    assert to_half[warmup:] == pytest.approx([0.5 + 0.5 * factor for factor in to_0[warmup:]])
    assert to_half[:warmup] == to_0[:warmup]
    assert schedule_factor(schedule, 10, 9, warmup, 0.5) == pytest.approx(0.5)


def test_lolrls_linear_schedule_with_two_accumulated_batches_ends_at_half() -> None:
    """Its length counts batches, and it moves once a step: of 2 batches each."""
    steps = 8
    theirs = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    falling = torch.optim.lr_scheduler.LambdaLR(theirs, lambda step: 1 - step / (2 * steps))
    for step in range(1, steps + 1):
        assert schedule_factor("linear", step, steps, 0, 0.5) == pytest.approx(falling.get_last_lr()[0])
        theirs.step()
        falling.step()


def test_a_learner_follows_its_schedule_to_its_end(models: dict[str, Path]) -> None:
    schedule = {"lr_schedule": "linear", "lr_end": 0.5}
    learner = make_learner(models["llama"], NLL(minibatch_size=None), iterations=2, **schedule)
    factors = [learner.update([rollout(0, (3,), (4,))])["learning_rate/factor"] for _ in range(2)]
    assert factors == [1.0, 0.75]
    with pytest.raises(ValueError, match=r"lr_end=0\.5 with lr_schedule=constant, which does not fall"):
        LearnerSettings(lr_end=0.5)


def test_the_factor_multiplies_the_base_rate_and_not_the_last_one(models: dict[str, Path]) -> None:
    optimizer = build_optimizer(make_pair(models["gpt2"]), PPO(learning_rate=1e-3, critic_learning_rate=1e-2))
    for _ in range(2):
        set_learning_rate(optimizer, 0.5)
    assert {(g["role"], g["lr"]) for g in optimizer.param_groups} == {("actor", 5e-4), ("critic", 5e-3)}


@pytest.mark.parametrize("count", [2, 4, 8])
def test_summed_gradients_are_stepped_as_their_mean_with_smaller_bounds(count: int) -> None:
    """LoL-RL's experiments divide its max_grad_norm and eps by the number of batches that it adds up."""
    generator = torch.Generator().manual_seed(0)
    theirs, ours = (torch.nn.Parameter(torch.ones(20, dtype=torch.float64)) for _ in range(2))
    options = {"lr": 0.1, "weight_decay": 0.01}
    summed = torch.optim.AdamW([theirs], eps=1e-3, **options)
    mean = torch.optim.AdamW([ours], eps=1e-3 / count, **options)
    for step in range(6):
        batches = torch.randn(count, 20, generator=generator, dtype=torch.float64) * 0.1 * step
        theirs.grad, ours.grad = batches.sum(0), batches.mean(0)
        torch.nn.utils.clip_grad_norm_([theirs], 1.0)
        torch.nn.utils.clip_grad_norm_([ours], 1.0 / count)
        summed.step()
        mean.step()
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


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
    with pytest.raises(
        LearnerError, match=r"the actor's gradient is not finite \(norm (nan|inf)\).*learning_rate="
    ):
        clip_gradients(policy, 0.5)
