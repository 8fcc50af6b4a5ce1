"""Signs of trouble in a batch, on rollouts worked by hand."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from learner.algorithms.critic_free import CriticFree
from learner.algorithms.dapo import DAPO
from learner.algorithms.rloo import RLOO
from services.training.loop.statistics.batch_signs import batch_signs, repetition
from services.training.loop.statistics.rollout_statistics import reward_statistics


def rollout(tokens: tuple[int, ...], reward: float | None, group: int = 0, prompt: int = 3) -> Rollout:
    turn = Turn(tuple(range(prompt)), tokens, "", (0.0,) * len(tokens), (0,) * len(tokens), reward)
    return Rollout(group, group, Prompt(f"p/{group}", "p"), (turn,), FinishReason.STOP)


def test_each_sign_is_as_worked_by_hand() -> None:
    batch = [
        rollout((1, 2, 3, 4, 5), 1.0, group=0),
        rollout((1, 1, 1, 1, 1), 1.0, group=0),  # 2 four-grams, 1 of them new: half is repeated
        rollout((1, 2, 3), 0.0, group=1, prompt=8),
        rollout((1, 2, 3, 4, 5), 1.0, group=1, prompt=8),
    ]
    signs = batch_signs(batch, longest_prompt=8)

    # Lengths 5 5 3 5 and rewards 1 1 0 1 are the same but for scale: they correlate at 1.
    assert signs == pytest.approx(
        {
            "response_repetition/mean": 0.125,
            "reward/min": 0.0,
            "reward/max": 1.0,
            "reward/length_correlation": 1.0,
            "groups/constant": 0.5,
            "prompts/cut": 0.5,
        }
    )


def by_tokens(rewards: tuple[float, ...], group: int) -> Rollout:
    one = rollout((1,) * len(rewards), 0.0, group)
    return replace(one, turns=(one.turns[0].with_reward(sum(rewards), rewards),))


@pytest.mark.parametrize("algorithm", [DAPO(), RLOO(drop_constant_groups=True)])
def test_constant_groups_are_those_that_the_learner_would_drop(algorithm: CriticFree) -> None:
    batch = [
        *(by_tokens((1.0, 0.0, 0.0), 0), by_tokens((0.0, 1.0, 0.0), 0)),  # equal sums, at other tokens
        *(by_tokens((0.0, 1.0), 1), by_tokens((0.0, 0.0, 1.0), 1)),  # as scores of texts
    ]
    kept = {taught.group for taught in algorithm.teaching(batch)}
    assert kept == ({0} if algorithm.uses_token_rewards else set())
    signs = batch_signs(batch, by_token=algorithm.uses_token_rewards)
    assert signs["groups/constant"] == 1 - len(kept) / 2


def test_turns_are_discounted_as_the_learner_does() -> None:
    early, late = (
        replace(rollout((1,), None), turns=tuple(rollout((1,), reward).turns[0] for reward in rewards))
        for rewards in ((1.0, 0.0), (0.0, 1.0))
    )
    for gamma in (0.5, 1.0):
        kept = DAPO(turn_gamma=gamma).teaching([early, late])
        assert batch_signs([early, late], discount=gamma)["groups/constant"] == (0.0 if kept else 1.0)


def debate(group: int, won: float) -> Rollout:
    turns = [
        Turn((1,), (2,), "", (0.0,), (0,), reward, fresh=True, role=role)
        for role, reward in (("pro", won), ("con", -won))
    ]
    return Rollout(group, group, Prompt("p", "p"), tuple(turns), FinishReason.STOP)


def test_roles_whose_rewards_add_up_to_zero_are_no_constant_group() -> None:
    batch = [debate(0, 1.0), debate(0, -1.0), debate(1, 1.0), debate(1, 1.0)]
    signs = batch_signs(batch)
    assert (signs["reward/min"], signs["reward/max"]) == (-1.0, 1.0)
    assert signs["groups/constant"] == 0.5  # both roles of group 1
    statistics = reward_statistics(batch)
    assert (statistics["reward/mean"], statistics["reward/std"]) == (0.0, pytest.approx((8 / 7) ** 0.5))


def test_what_a_batch_does_not_have_is_left_out() -> None:
    assert batch_signs([rollout((1, 2), None)]) == {"response_repetition/mean": 0.0}
    assert set(batch_signs([rollout((1, 2), 0.5, 0), rollout((1, 2), 0.5, 1)])) == {
        "response_repetition/mean",
        "reward/min",
        "reward/max",
    }


@given(st.permutations(range(100)))
def test_the_order_in_which_rollouts_came_back_changes_nothing(order: list[int]) -> None:
    batch = [replace(rollout((1, *[i % 3] * (i % 9)), i / 7, group=i // 4), lease_id=i) for i in range(100)]

    assert batch_signs([batch[i] for i in order]) == batch_signs(batch)


@given(st.lists(st.integers(0, 3), max_size=40))
def test_repetition_is_a_share_that_grows_when_the_text_is_said_again(tokens: list[int]) -> None:
    once, twice = repetition(tokens), repetition(tokens * 2)

    assert 0 <= once < 1 and 0 <= twice < 1
    assert twice >= once - 1e-12


@pytest.mark.parametrize("num_words", [2, 10, 60_000, 2**16 + 1, 150_000])
def test_repetition_is_counted_alike_in_small_and_large_vocabularies(num_words: int) -> None:
    chance = random.Random(num_words)
    for length in (4, 5, 40, 700):
        some = [chance.randrange(num_words) for _ in range(3)] + [0, num_words - 1]
        tokens = tuple(chance.choice(some) for _ in range(length))
        grams = [tokens[start : start + 4] for start in range(length - 3)]
        assert repetition(tokens) == (len(grams) - len(set(grams))) / len(grams)
