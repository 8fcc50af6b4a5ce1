"""The critics' shapes, and values in units of all returns so far."""

from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from learner.algorithms.ppo import PPO
from learner.batches.batching import collate
from learner.models.critic import RunningNorm
from learner.models.value_heads import VALUE_HEADS
from tests.learner.tiny import (
    AS_PAID,
    make_learner,
    make_pair,
    perturb,
    random_rollouts,
    rollout,
    snapshot,
    whole,
)

returns = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=20)


def test_the_two_layers_begin_with_value_zero_and_are_as_wide_as_published(models: dict[str, Path]) -> None:
    pair = make_pair(models["gpt2"], critic="mlp")
    assert [tuple(p.shape) for p in pair.critic.parameters()] == [(32, 16), (32,), (1, 32), (1,)]
    values_N = pair(whole(collate(random_rollouts(3)))).values_N
    assert values_N is not None and not values_N.any()


def test_two_layers_by_hand(models: dict[str, Path]) -> None:
    pair = make_pair(models["gpt2"], critic="mlp")
    perturb(pair.critic, 0.3)
    out = pair(whole(collate(random_rollouts(3))))
    first, _, second = pair.critic.head
    expected = (out.hidden_NH @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias
    torch.testing.assert_close(out.values_N, expected.squeeze(-1))


@pytest.mark.parametrize("critic", ["linear", "mlp"])
def test_in_bfloat16_values_and_their_gradients_keep_the_digits_of_float32(
    models: dict[str, Path], critic: str
) -> None:
    pair = make_pair(models["gpt2"], critic=critic)
    perturb(pair.critic, 0.3)
    micro = whole(collate(random_rollouts(3)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = pair(micro)
        values_N = pair.critic(
            pair.policy, micro, out.hidden_NH.bfloat16()
        )  # as a norm in bfloat16 gives them
    assert out.values_N is not None and values_N.dtype == torch.float32
    expected_N = pair.critic.head(out.hidden_NH.float()).squeeze(-1)
    rounded_N = pair.critic.head(out.hidden_NH.bfloat16().float()).squeeze(-1)
    assert torch.equal(out.values_N, expected_N) and torch.equal(values_N, rounded_N)
    our_gradients, wanted = (
        torch.autograd.grad(each_N.sum(), list(pair.critic.parameters()))
        for each_N in (out.values_N, expected_N)
    )
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(our_gradients, wanted, strict=True))


@pytest.mark.parametrize("name", VALUE_HEADS)
def test_value_heads_of_prompts_are_float32_in_bfloat16_too(name: str) -> None:
    torch.manual_seed(0)
    head = VALUE_HEADS[name](16).eval()
    hidden_BLH, mask_BL = torch.randn(3, 5, 16), torch.ones(3, 5, dtype=torch.bool)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values_B = head(hidden_BLH, mask_BL)
    assert torch.equal(values_B, head(hidden_BLH, mask_BL))


# RunningNorm


def test_the_first_batch_counts_in_full() -> None:
    """Debiased: a running mean that begins at 0 would be drawn to 0 for 100,000 returns."""
    norm = RunningNorm()
    norm.update(torch.tensor([1.0, 2.0, 3.0, 6.0]))  # mean 3, variance (4 + 1 + 0 + 9) / 4 = 3.5
    normal = norm.normalize(torch.tensor([3.0, 3.0 + 3.5**0.5]))
    torch.testing.assert_close(normal, torch.tensor([0.0, 1.0]))


@given(st.lists(returns, min_size=1, max_size=4))
def test_it_is_the_moments_of_all_returns_so_far(batches: list[list[float]]) -> None:
    norm = RunningNorm()
    for batch in batches:
        norm.update(torch.tensor(batch))
    everything = torch.tensor([value for batch in batches for value in batch], dtype=torch.float64)
    deviation = everything.std(correction=0)
    assume(deviation > 1e-3)  # of equal returns the decay makes a deviation of its own
    expected = (everything - everything.mean()) / deviation
    torch.testing.assert_close(norm.normalize(everything), expected, atol=2e-2, rtol=2e-2)


def test_a_small_decay_follows_the_last_returns() -> None:
    # keep ½ a return: after 0 and then 4 the mean is (½ · ½ · 0 + ½ · 4) / (½ · ½ + ½) = 8/3
    norm = RunningNorm(decay=0.5)
    norm.update(torch.tensor([0.0]))
    norm.update(torch.tensor([4.0]))
    assert float(norm.denormalize(torch.zeros(1))) == pytest.approx(8 / 3)


@given(returns, returns)
def test_denormalising_undoes_normalising(seen: list[float], values: list[float]) -> None:
    norm = RunningNorm()
    norm.update(torch.tensor(seen))
    values_N = torch.tensor(values)
    back_N = norm.denormalize(norm.normalize(values_N))
    torch.testing.assert_close(back_N, values_N, atol=1e-4, rtol=1e-4)
    assert back_N.dtype == torch.float32


def test_before_any_return_it_is_the_identity() -> None:
    values_N = torch.tensor([-2.0, 5.0])
    for change in (RunningNorm().normalize, RunningNorm().denormalize, RunningNorm().as_predicted):
        assert torch.equal(change(values_N), values_N)


def test_what_the_critic_said_is_found_again_after_an_update() -> None:
    norm = RunningNorm()
    norm.update(torch.tensor([10.0, 30.0]))
    said_N = torch.tensor([-0.5, 0.0, 2.0])
    values_N = norm.denormalize(said_N)  # 15, 20, 40
    norm.update(torch.tensor([500.0]))
    torch.testing.assert_close(norm.as_predicted(values_N), said_N)
    assert (norm.normalize(values_N) - said_N).abs().max() > 0.3


# In an update


def test_a_normalising_critic_learns_returns_far_from_zero(models: dict[str, Path]) -> None:
    """Rewards near 500: in the rewards' own units a few steps would not get there."""
    rollouts = [rollout(i, (3, 4 + i % 5), (5, 6), 500.0 + 20 * (i % 5)) for i in range(10)]
    errors = {}
    for normalize in (True, False):
        algorithm = PPO(learning_rate=1e-3, gamma=1.0, num_epochs=5, normalize_values=normalize, **AS_PAID)
        learner = make_learner(models["llama"], algorithm)
        learner.update(rollouts)
        values_N = learner.pair(whole(collate(rollouts))).values_N
        if learner.pair.value_norm is not None:
            values_N = learner.pair.value_norm.denormalize(values_N)
        errors[normalize] = (values_N - 540.0).abs().mean().item()
    assert errors[True] < 40 < 400 < errors[False]


def test_a_clipped_critic_learns_in_its_first_iteration_too(models: dict[str, Path]) -> None:
    """The moments jump from 0 and 1 to the returns'; held against them, every value would be out of range."""
    algorithm = PPO(normalize_values=True, value_clip_range=0.2, learning_rate=1e-3)
    learner = make_learner(models["llama"], algorithm)
    before = snapshot(learner.pair.critic)
    learner.update([rollout(i, (3, 4), (5, 6), 500.0 + i) for i in range(8)])
    assert any(not torch.equal(before[name], p) for name, p in snapshot(learner.pair.critic).items())
