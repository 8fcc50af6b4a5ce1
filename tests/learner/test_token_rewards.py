"""Rewards of tokens: credit by hand, and none but the last is a text's reward, in each algorithm."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.rollout import Rollout
from learner.algorithms.dapo import DAPO
from learner.algorithms.dr_grpo import DrGRPO
from learner.algorithms.grpo import GRPO
from learner.algorithms.ppo import PPO
from learner.algorithms.reinforce_pp import ReinforcePP
from learner.algorithms.rloo import RLOO
from learner.batches.batching import collate
from learner.functional.groups import group_advantages, group_token_advantages
from tests.learner.inputs import credit_inputs
from tests.learner.seq2seq import single_turns
from tests.learner.test_every_algorithm import algorithm_of, smooth, trained
from tests.learner.tiny import AS_PAID, CRITIC_AS_PAID, random_rollouts, rollout, snapshot

ONLINE = (
    *("ppo", "nlpo", "a2c", "trpo", "grpo", "dr_grpo", "dapo", "cispo", "gspo", "rloo", "reinforce_pp"),
    *("gdpo", "sapo", "max_rl", "dppo"),
)


def by_tokens(rewards: Sequence[Sequence[float]], groups: Sequence[int], **options: Any) -> Any:
    return replace(credit_inputs(rewards, groups, **options), has_token_rewards=True)


def paid(one: Rollout, rewards: Sequence[Sequence[float]]) -> Rollout:
    """The rollout with these rewards of its turns' tokens."""
    turns = zip(one.turns, rewards, strict=True)
    return replace(one, turns=tuple(turn.with_reward(sum(earned), tuple(earned)) for turn, earned in turns))


def as_tokens(one: Rollout) -> Rollout:
    """The rollout whose last tokens have what each of its turns earns."""
    return paid(one, [[*[0.0] * (turn.num_tokens - 1), turn.reward or 0.0] for turn in one.turns])


# By hand


def test_gae_takes_each_reward_at_its_token() -> None:
    # γ = 1, λ = ½, values 1, 2, 3: δ = 0.5 + 2 - 1, 0 + 3 - 2, 2 - 3; A_3 = -1, A_2 = 1 - ½, A_1 = 1.5 + ¼
    algorithm = PPO(gae_lambda=0.5, advantage_whitening="none", **CRITIC_AS_PAID)
    inputs = by_tokens([[0.5, 0, 2]], [0], values=[[1, 2, 3]])
    assert algorithm.credit(inputs).advantages_BT.tolist() == [[1.75, 0.5, -1.0]]
    # the penalties stay at their tokens, too: β = ½, KL 1 at the second one takes ½ of its δ
    inputs = by_tokens([[0.5, 0, 2]], [0], values=[[1, 2, 3]], kl=[[0, 1, 0]], kl_coefficient=0.5)
    assert algorithm.credit(inputs).advantages_BT.tolist() == [[1.5, 0.0, -1.0]]


def test_groups_compare_what_is_still_to_come_from_the_same_place_on() -> None:
    # returns (3, 2, 2) and (1, 0), held at 0: means 2, 1, 1
    inputs = by_tokens([[1, 0, 2], [1, 0]], [4, 4])
    expected = torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, 0.0]])
    assert torch.equal(DrGRPO(**AS_PAID).credit(inputs).advantages_BT, expected)
    # all three places have the unbiased variance 2
    torch.testing.assert_close(GRPO(**AS_PAID).credit(inputs).advantages_BT, expected / (2**0.5 + 1e-4))


def test_the_deviation_is_the_root_of_the_mean_variance_of_all_places() -> None:
    # returns (4, 4, 0), (0, 0, 0): variances 8, 8, 0; a group alone has none; another group is not longer
    inputs = by_tokens([[0, 4, 0], [0, 0, 0], [5], [1, 0], [1, 0]], [4, 4, 7, 9, 9])
    expected = torch.tensor([[2.0, 2, 0], [-2, -2, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    advantages_BT = GRPO(**AS_PAID).credit(inputs).advantages_BT
    torch.testing.assert_close(advantages_BT, expected / ((16 / 3) ** 0.5 + 1e-4))


@pytest.mark.parametrize("scale", [False, True])
def test_a_row_without_tokens_earns_nothing_and_counts_as_a_return_of_zero(scale: bool) -> None:
    mask_BT = torch.tensor([[True, True], [False, False]])
    returns_BT = torch.tensor([[3.0, 2.0], [0.0, 0.0]])
    advantages_BT = group_token_advantages(returns_BT, mask_BT, torch.tensor([4, 4]), scale=scale)
    deviation = (13 / 4) ** 0.5 + 1e-4 if scale else 1.0  # variances 9/2 and 2
    torch.testing.assert_close(advantages_BT, torch.tensor([[1.5, 1.0], [0.0, 0.0]]) / deviation)


def test_a_penalty_belongs_to_the_whole_response() -> None:
    # DAPO's: 10 tokens at most, the last 2 of them dear: -1 for 10 tokens. KL in the reward: ½ · (1 + 1)
    inputs = replace(by_tokens([[1, *[0] * 9], [1, 0]], [4, 4]), max_tokens=10)
    advantages_BT = DAPO(**AS_PAID).compared(inputs, scale=False)
    assert advantages_BT[0].tolist() == [-0.5] * 10 and advantages_BT[1, :2].tolist() == [0.5, 0.5]
    inputs = by_tokens([[1, 0], [1, 0]], [4, 4], kl=[[1, 1], [0, 0]], kl_coefficient=0.5)
    assert DrGRPO(**AS_PAID).credit(inputs).advantages_BT.tolist() == [[-0.5, -0.5], [0.5, 0.5]]


def test_reinforce_pp_returns_and_rloo_sums() -> None:
    # returns (3, 2), (1): mean 2, deviation 1
    inputs = by_tokens([[1, 2], [1]], [4, 4])
    assert ReinforcePP(**AS_PAID).credit(inputs).advantages_BT.tolist() == [[1.0, 0.0], [-1.0, 0.0]]
    assert RLOO(**AS_PAID).credit(inputs).advantages_BT.tolist() == [[2.0, 2.0], [-2.0, 0.0]]


def test_who_uses_them_says_so() -> None:
    uses = {name for name in ONLINE if algorithm_of(name).uses_token_rewards}
    assert uses == set(ONLINE) - {"gspo", "rloo", "gdpo", "max_rl"}
    assert not algorithm_of("rejection").uses_token_rewards and not algorithm_of("dpo").uses_token_rewards
    assert not PPO(spread_rewards=True).uses_token_rewards
    assert not PPO(value_level="action_first").uses_token_rewards


# Properties


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.floats(-9, 9, width=32)), min_size=1),
    st.booleans(),
)
def test_last_tokens_alone_earn_what_texts_do(rows: list[tuple[int, int, float]], scale: bool) -> None:
    groups_B = torch.tensor([group for group, _, _ in rows])
    scores_B = torch.tensor([score for _, _, score in rows])
    mask_BT = torch.arange(5) < torch.tensor([length for _, length, _ in rows])[:, None]
    found_BT = group_token_advantages(scores_B[:, None] * mask_BT, mask_BT, groups_B, scale=scale)
    expected_B = group_advantages(scores_B, groups_B, scale=scale)
    torch.testing.assert_close(found_BT, expected_B[:, None] * mask_BT, rtol=1e-6, atol=1e-7)


def test_rewards_of_tokens_stand_in_the_batch_where_they_are_earned() -> None:
    one = random_rollouts(1)[0]
    rewards = [np.random.default_rng(3).normal(size=turn.num_tokens).tolist() for turn in one.turns]
    batch = collate([paid(one, rewards), random_rollouts(2)[1]])
    torch.testing.assert_close(
        batch.rewards_BT[0, : one.num_generated], torch.tensor([x for of_row in rewards for x in of_row])
    )
    assert batch.has_token_rewards and not collate(random_rollouts(2)).has_token_rewards


def test_only_groups_without_any_difference_teach_nothing() -> None:
    def of_group(*rewards: Sequence[float]) -> list[Rollout]:
        made = [paid(rollout(n, [3], [5] * len(earned)), [earned]) for n, earned in enumerate(rewards)]
        return [replace(one, group=4) for one in made]

    dapo = DAPO()
    early_or_late = of_group([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    assert dapo.teaching(early_or_late) == early_or_late
    assert dapo.teaching(of_group([0.0, 1.0], [0.0, 0.0, 0.0, 1.0])) == []  # as texts: nothing to compare
    assert RLOO(drop_constant_groups=True).teaching(early_or_late) == []


@pytest.mark.parametrize("name", ONLINE)
def test_the_learner_makes_the_same_update_of_rewards_of_texts(models: dict[str, Path], name: str) -> None:
    """Where all tokens but the last earn nothing; where others earn something, too, it makes another one."""
    algorithm = smooth(name)
    texts = [replace(one, group=n // 4) for n, one in enumerate(single_turns(12))]
    expected = snapshot(trained(models["llama"], algorithm, texts).pair)
    weights = snapshot(trained(models["llama"], algorithm, list(map(as_tokens, texts))).pair)
    for key, parameter in weights.items():
        torch.testing.assert_close(parameter, expected[key], rtol=0, atol=1e-7)
    earlier = [paid(one, [as_tokens(one).turns[0].token_rewards[::-1]]) for one in texts]
    other = snapshot(trained(models["llama"], algorithm, earlier).pair)
    differs = max(float((other[key] - expected[key]).abs().max()) for key in expected)
    assert (differs > 1e-4) == algorithm.uses_token_rewards


def test_several_micro_batches_lay_rewards_of_tokens_where_they_are(models: dict[str, Path]) -> None:
    rng = np.random.default_rng(5)
    rollouts = [
        paid(replace(one, group=n // 4), [rng.normal(size=turn.num_tokens).tolist() for turn in one.turns])
        for n, one in enumerate(random_rollouts(12))
    ]
    for name in ("ppo", "grpo"):
        expected = snapshot(trained(models["llama"], smooth(name), rollouts).pair)
        split = snapshot(trained(models["llama"], smooth(name), rollouts[::-1], token_budget=1).pair)
        for key, parameter in split.items():
            torch.testing.assert_close(parameter, expected[key], atol=2e-5, rtol=1e-4)
