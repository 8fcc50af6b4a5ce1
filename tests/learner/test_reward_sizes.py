"""Rewards of any size train equally, because defaults count them in units of their running deviation."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.rollout import Rollout
from learner.algorithms.base import Algorithm
from learner.algorithms.classes import algorithm_class
from learner.functional.rewards import in_units
from learner.learner import Learner
from learner.models.critic import RunningNorm
from tests.learner.inputs import credit_inputs
from tests.learner.tiny import SMOOTH, make_learner, random_rollouts, snapshot

ONLINE = (
    *("ppo", "nlpo", "a2c", "trpo", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp"),
    *("gdpo", "sapo", "max_rl", "dppo"),
)
CRITICS = ("ppo", "nlpo", "a2c", "trpo")
# Conjugate gradients that have not settled would show their rounding.
SETTLED = {"cg_max_steps": 4, "cg_damping": 0.5, "num_epochs": 2}


def algorithm_of(name: str, **options: Any) -> Algorithm:
    quick = SETTLED if name == "trpo" else {"num_epochs": 1 if name == "a2c" else 2}
    defaults = {"learning_rate": 1e-3, "optimizer": SMOOTH, **quick}
    return algorithm_class(name)(**defaults | options)  # type: ignore[arg-type]


def sized(rollouts: list[Rollout], factor: float) -> list[Rollout]:
    """The rollouts with each reward times `factor`."""
    return [
        replace(one, turns=tuple(replace(t, reward=factor * (t.reward or 0.0)) for t in one.turns))
        for one in rollouts
    ]


def trained(model: Path, algorithm: Algorithm, factor: float, iterations: int = 2) -> Learner:
    learner = make_learner(model, algorithm)
    for iteration in range(iterations):
        rollouts = (
            replace(one, group=i // 4, turns=one.turns[:1])  # an encoder-decoder has one turn
            for i, one in enumerate(random_rollouts(8, seed=iteration))
        )
        learner.update(sized(list(rollouts), factor))
    return learner


# Defaults


@pytest.mark.parametrize(
    ("name", "family"), [*((name, "llama") for name in ONLINE), ("ppo", "t5"), ("a2c", "t5"), ("rloo", "t5")]
)
def test_rewards_of_any_size_train_the_same_weights(
    name: str, family: str, models: dict[str, Path], seq2seq: dict[Any, Path]
) -> None:
    model = seq2seq["t5"] if family == "t5" else models[family]
    # Powers of two, whose products are exact: the same to the bit
    at_one, small, large = (trained(model, algorithm_of(name), factor) for factor in (1.0, 1 / 128, 128.0))

    reference = snapshot(at_one.pair.policy)
    untrained = snapshot(make_learner(model, algorithm_of(name)).pair.policy)
    assert any(not torch.equal(p, untrained[key]) for key, p in reference.items())
    for other in (small, large):
        for key, parameter in snapshot(other.pair.policy).items():
            assert torch.equal(parameter, reference[key]), key


@pytest.mark.parametrize("name", ["ppo", "rloo"])
def test_with_a_number_as_scale_the_size_matters(name: str, models: dict[str, Path]) -> None:
    """The KL's penalty keeps its size, so that a hundred times the reward is another objective."""
    ends = []
    for factor in (1.0, 100.0):
        learner = trained(models["llama"], algorithm_of(name, reward_scale=1.0), factor)
        ends.append(torch.cat([p.flatten() for p in snapshot(learner.pair.policy).values()]))
    assert (ends[0] - ends[1]).abs().max() > 1e-4


# In units of their deviation


@given(st.floats(1e-3, 1e3), st.lists(st.floats(-1, 1), min_size=2, max_size=8))
def test_units_do_not_depend_on_the_size(factor: float, rewards: list[float]) -> None:
    rewards_BT = torch.tensor([rewards], dtype=torch.float64)
    small, large = (
        in_units(rewards_BT, "deviation", 0.5),
        in_units(factor * rewards_BT, "deviation", factor * 0.5),
    )
    torch.testing.assert_close(small, large)


def test_a_number_multiplies() -> None:
    assert in_units(torch.tensor([[3.0]]), 0.5, 100.0).tolist() == [[1.5]]


def test_the_learner_measures_the_deviation_of_whole_rollouts(models: dict[str, Path]) -> None:
    """Rewards 1, 1, 4, 4 have the mean 2.5 and the deviation 1.5."""
    learner = make_learner(models["llama"], algorithm_of("ppo"))
    rollouts = random_rollouts(4, seed=0)
    first_of_two = [replace(one, turns=tuple(replace(t, reward=0.0) for t in one.turns)) for one in rollouts]
    paid = zip(first_of_two, (1.0, 1.0, 4.0, 4.0), strict=True)
    learner.update(
        [replace(one, turns=(*one.turns[:-1], replace(one.turns[-1], reward=r))) for one, r in paid]
    )
    assert learner.reward_norm.deviation == pytest.approx(1.5)


def test_equal_rewards_have_their_size_as_unit() -> None:
    norm = RunningNorm()
    norm.update(torch.zeros(6))
    assert norm.deviation == 1.0
    norm = RunningNorm()
    norm.update(torch.full((6,), 0.1))  # a tenth has no exact square
    assert norm.deviation == pytest.approx(0.1)
    norm.update(torch.zeros(6))
    assert norm.deviation == pytest.approx(0.05, rel=1e-3)  # half of them 0.1, half 0: ± 0.05


def test_small_returns_have_their_own_deviation() -> None:
    """± 0.001 around 0.01: no floor makes them flat."""
    norm = RunningNorm()
    norm.update(torch.tensor([0.009, 0.011]))
    torch.testing.assert_close(norm.normalize(torch.tensor([0.011])), torch.tensor([1.0]), rtol=1e-3, atol=0)


def test_a_checkpoint_keeps_the_deviation(models: dict[str, Path], tmp_path: Path) -> None:
    learner = trained(models["llama"], algorithm_of("ppo"), 10.0)
    learner.save(str(tmp_path))
    resumed = make_learner(models["llama"], algorithm_of("ppo"))
    resumed.load(str(tmp_path))
    assert resumed.reward_norm.deviation == learner.reward_norm.deviation != 1.0


# The first iteration


def test_a_new_critic_expects_the_mean_return() -> None:
    """Two tokens, and the reward 3 at the end: each token's return is 3, which is no surprise."""
    inputs = credit_inputs([[0.0, 3.0]], values=[[0.0, 0.0]])
    ppo = algorithm_class("ppo")(advantage_whitening="none", reward_scale=1.0)
    surprised, knowing = ppo.credit(inputs), ppo.credit(replace(inputs, critic_is_new=True))
    # Without it, A = (λ · 3, 3) with λ = 0.95.
    torch.testing.assert_close(surprised.advantages_BT, torch.tensor([[2.85, 3.0]]))
    torch.testing.assert_close(knowing.advantages_BT, torch.zeros(1, 2))
    torch.testing.assert_close(knowing.returns_BT, torch.full((1, 2), 3.0))


def test_a_new_critic_expects_discounted_returns() -> None:
    # γ = 0.5, the reward 4 after three tokens: returns 1, 2, 4, of which the mean is 7/3
    inputs = replace(credit_inputs([[0.0, 0.0, 4.0]]), critic_is_new=True)
    credit = algorithm_class("ppo")(gamma=0.5, advantage_whitening="none", reward_scale=1.0).credit(inputs)
    assert float(credit.advantages_BT[0, 2]) == pytest.approx(4 - 7 / 3)


def test_a_new_critic_expects_as_much_of_an_episode_that_was_cut() -> None:
    # returns 2 and 2 of the whole episode, 0 and 0 of the one that goes on: it ends in their mean, 1
    inputs = replace(
        credit_inputs([[0.0, 2.0], [0.0, 0.0]]), critic_is_new=True, cut_B=torch.tensor([False, True])
    )
    credit = algorithm_class("ppo")(advantage_whitening="none", reward_scale=1.0).credit(inputs)
    torch.testing.assert_close(credit.advantages_BT[1], torch.zeros(2))


def test_whitened_rewards_begin_near_zero() -> None:
    inputs = replace(credit_inputs([[0.0, 47.0], [0.0, 45.0]]), critic_is_new=True)
    credit = algorithm_class("ppo")(normalize_rewards=True, advantage_whitening="none").credit(inputs)
    assert credit.advantages_BT.abs().max() < 3


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_a_first_iteration_of_equal_rewards_has_no_size_either(name: str, models: dict[str, Path]) -> None:
    ends = []
    for factor in (1 / 128, 1.0, 128.0):
        learner = make_learner(models["llama"], algorithm_of(name))
        turns = [one.turns[0] for one in random_rollouts(8, seed=5)]
        for rewards in ([1.0] * 8, [1.0, 0.0] * 4):
            paid = zip(random_rollouts(8, seed=5), turns, rewards, strict=True)
            learner.update([replace(one, turns=(replace(t, reward=factor * r),)) for one, t, r in paid])
        ends.append(torch.cat([p.flatten() for p in snapshot(learner.pair.policy).values()]))
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[1], ends[2])


@pytest.mark.parametrize("name", CRITICS)
def test_an_offset_of_all_rewards_teaches_nothing(name: str, models: dict[str, Path]) -> None:
    """A thousand more for every text makes none better, and the first step does not think so either."""
    ends = []
    for offset in (0.0, 1000.0):
        learner = make_learner(models["llama"], algorithm_of(name))
        turns = [one.turns[0] for one in random_rollouts(8, seed=3)]
        paid = [replace(turn, reward=(turn.reward or 0.0) + offset) for turn in turns]
        learner.update(
            [replace(one, turns=(turn,)) for one, turn in zip(random_rollouts(8, seed=3), paid, strict=True)]
        )
        ends.append(torch.cat([p.flatten() for p in snapshot(learner.pair.policy).values()]))
    assert not math.isnan(float(ends[0].sum()))
    torch.testing.assert_close(ends[0], ends[1], atol=1e-4, rtol=1e-2)
