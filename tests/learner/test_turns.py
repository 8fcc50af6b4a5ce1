"""Credit over several turns: both discounts by hand, against written-out sums, and invariances."""

import math
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from learner.algorithms.actor_critic import ActorCriticAlgorithm
from learner.algorithms.base import Credit, CreditInputs
from learner.algorithms.grpo import GRPO
from learner.algorithms.ppo import PPO
from learner.algorithms.reinforce_pp import ReinforcePP
from learner.algorithms.rloo import RLOO
from learner.functional.advantages import generalized_advantages
from learner.functional.turns import turn_advantages, turn_ends, turn_numbers
from learner.optimization.kl_control import KLSettings
from tests.learner.inputs import credit_inputs, loss_inputs
from tests.learner.tiny import played

numbers = st.floats(-5, 5, width=32)
fractions = st.floats(0, 1, width=32)

# A rollout: for each turn the rewards and the values of its tokens; what the next turn would be worth.
Turns = list[list[tuple[float, float]]]
Game = tuple[Turns, float]
games = st.lists(
    st.tuples(
        st.lists(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=4), min_size=1, max_size=4),
        st.one_of(st.just(0.0), numbers),
    ),
    min_size=1,
    max_size=3,
)

# Two turns of three tokens: the first earns 1, the second 2; γ = ½, γ_turn = ½.
REWARDS, VALUES = [0.0, 0, 1, 0, 0, 2], [1.0, 2, 4, 2, 1, 3]
TWO_DISCOUNTS = {"gamma": 0.5, "turn_gamma": 0.5}
PLAIN: dict[str, Any] = {"kl": KLSettings(coefficient=0.0), "advantage_whitening": "none"}


def laid_out(drawn: list[Game]) -> CreditInputs:
    rows = [[token for turn in turns for token in turn] for turns, _ in drawn]
    return credit_inputs(
        [[reward for reward, _ in row] for row in rows],
        values=[[value for _, value in row] for row in rows],
        turns=[[len(turn) for turn in turns] for turns, _ in drawn],
        bootstrap=[pending for _, pending in drawn],
    )


def credit_of(inputs: CreditInputs, **options: Any) -> Credit:
    return PPO(**(PLAIN | options)).credit(inputs)


def two_turns(bootstrap: float = 0.0) -> CreditInputs:
    return credit_inputs([REWARDS], values=[VALUES], turns=[[3, 3]], bootstrap=[bootstrap])


# Tokens


def test_turns_and_their_ends_are_read_from_positions() -> None:
    inputs = laid_out([([[(0, 0)] * 2, [(0, 0)], [(0, 0)] * 3], 0.0), ([[(0, 0)]], 0.0)])
    padded = [False] * 5
    assert turn_numbers(inputs.positions_BT, inputs.mask_BT).tolist() == [[0, 0, 1, 2, 2, 2], [0] * 6]
    assert turn_ends(inputs.positions_BT, inputs.mask_BT).tolist() == [
        [False, True, True, False, False, True],
        [True, *padded],
    ]


def test_two_turns_that_ended_by_hand() -> None:
    # λ = 1, λ_turn = ½: inside a turn d = c = ½, between them d = ¼ and c = ⅛
    #   A_5 = 2 - 3 = -1          A_4 = (½·3 - 1) + ½·-1 = 0        A_3 = (½·1 - 2) + 0 = -3/2
    #   A_2 = (1 + ¼·2 - 4) + ⅛·-3/2 = -43/16
    #   A_1 = (½·4 - 2) + ½ A_2 = -43/32                             A_0 = (½·2 - 1) + ½ A_1 = -43/64
    credit = credit_of(two_turns(), **TWO_DISCOUNTS, gae_lambda=1.0, turn_lambda=0.5)
    assert credit.advantages_BT.tolist() == [[-43 / 64, -43 / 32, -43 / 16, -1.5, 0.0, -1.0]]
    assert credit.returns_BT.tolist() == [[1 - 43 / 64, 2 - 43 / 32, 4 - 43 / 16, 0.5, 1.0, 2.0]]
    assert credit.value_mask_BT is None


def test_two_turns_that_were_cut_off_by_hand() -> None:
    # what would have come next is worth 8, another turn away:
    #   A_5 = 2 + ¼·8 - 3 = 1     A_4 = ½ + ½·1 = 1                A_3 = -3/2 + ½·1 = -1
    #   A_2 = -5/2 + ⅛·-1 = -21/8, and half of it, and half of that
    credit = credit_of(two_turns(8.0), **TWO_DISCOUNTS, gae_lambda=1.0, turn_lambda=0.5)
    assert credit.advantages_BT.tolist() == [[-21 / 32, -21 / 16, -21 / 8, -1.0, 1.0, 1.0]]


def test_one_step_between_turns_is_trl_textworlds() -> None:
    # λ_turn = 0, λ = ½: A_2 = 1 + ¼·2 - 4 = -5/2, whatever came of the second turn
    #   A_1 = 0 + ¼ A_2      A_0 = 0 + ¼ A_1      A_4 = ½ + ¼·-1 = ¼      A_3 = -3/2 + ¼·¼
    credit = credit_of(two_turns(), **TWO_DISCOUNTS, gae_lambda=0.5, turn_lambda=0.0)
    assert credit.advantages_BT.tolist() == [[-5 / 32, -5 / 8, -2.5, -23 / 16, 0.25, -1.0]]


def written_out(drawn: Game, gamma: float, lam: float, turn_gamma: float, turn_lambda: float) -> list[float]:
    """A_t = Σ_k c_t ⋯ c_{k-1} δ_k, every product and sum anew."""
    turns, pending = drawn
    tokens = [token for turn in turns for token in turn]
    ends = {end - 1 for end in accumulate(len(turn) for turn in turns)}
    d = [gamma * (turn_gamma if t in ends else 1.0) for t in range(len(tokens))]
    c = [d[t] * (turn_lambda if t in ends else lam) for t in range(len(tokens))]
    after = [*(value for _, value in tokens[1:]), pending]
    deltas = [reward + d_t * v - value for (reward, value), d_t, v in zip(tokens, d, after, strict=True)]
    return [sum(math.prod(c[t:k]) * deltas[k] for k in range(t, len(tokens))) for t in range(len(tokens))]


@given(games, fractions, fractions, fractions, fractions)
def test_advantages_are_the_sums_written_out(
    drawn: list[Game], gamma: float, lam: float, turn_gamma: float, turn_lambda: float
) -> None:
    inputs = laid_out(drawn)
    credit = credit_of(inputs, gamma=gamma, gae_lambda=lam, turn_gamma=turn_gamma, turn_lambda=turn_lambda)
    for row, one in enumerate(drawn):
        expected = torch.tensor(written_out(one, gamma, lam, turn_gamma, turn_lambda))
        torch.testing.assert_close(credit.advantages_BT[row, : len(expected)], expected, atol=1e-4, rtol=1e-4)
        assert not credit.advantages_BT[row, len(expected) :].any()
    torch.testing.assert_close(
        credit.returns_BT, (credit.advantages_BT + inputs.values_BT).where(inputs.mask_BT, 0.0)
    )


@given(games, fractions, fractions)
def test_without_a_discount_between_turns_it_is_plain_gae_to_the_bit(
    drawn: list[Game], gamma: float, lam: float
) -> None:
    inputs = laid_out([(turns, 0.0) for turns, _ in drawn])
    expected, _ = generalized_advantages(
        inputs.rewards_BT, inputs.values_BT, inputs.mask_BT, gamma=gamma, gae_lambda=lam
    )
    assert torch.equal(credit_of(inputs, gamma=gamma, gae_lambda=lam).advantages_BT, expected)


@given(games, fractions, fractions, fractions)
def test_a_cut_is_worth_what_the_next_turn_would_have_been(
    drawn: list[Game], gamma: float, lam: float, turn_gamma: float
) -> None:
    """With λ_turn = 0 a turn knows of the next one its first value alone, played or not."""
    for turns, pending in drawn:
        options = {"gamma": gamma, "gae_lambda": lam, "turn_gamma": turn_gamma, "turn_lambda": 0.0}
        one_more = laid_out([([*turns, [(1.0, pending), (2.0, 3.0)]], 0.0)])
        whole = credit_of(one_more, **options).advantages_BT[:, :-2]
        assert torch.equal(credit_of(laid_out([(turns, pending)]), **options).advantages_BT, whole)


levels = pytest.mark.parametrize("level", ["token", "action_first", "action_mean"])


@levels
@given(drawn=games, more=st.integers(1, 4), rubbish=numbers)
def test_neither_padding_nor_order_changes_credit(
    level: str, drawn: list[Game], more: int, rubbish: float
) -> None:
    options = {"gamma": 0.9, "gae_lambda": 0.8, "turn_gamma": 0.7, "turn_lambda": 0.6, "value_level": level}
    inputs = laid_out(drawn)
    clean = credit_of(inputs, **options)
    num, width = inputs.mask_BT.shape

    def padded(values_BT: Tensor, fill: float) -> Tensor:
        wide = torch.nn.functional.pad(values_BT, (0, more), value=fill)
        inside = torch.nn.functional.pad(inputs.mask_BT, (0, more))
        return wide.where(inside, torch.full_like(wide, fill)).flip(0)

    dirty = credit_of(
        CreditInputs(
            rewards_BT=padded(inputs.rewards_BT, rubbish),
            kl_BT=padded(inputs.kl_BT, 0.0),
            values_BT=padded(inputs.values_BT, rubbish),
            mask_BT=torch.nn.functional.pad(inputs.mask_BT, (0, more)).flip(0),
            positions_BT=padded(inputs.positions_BT, 0),
            groups_B=inputs.groups_B,
            bootstrap_B=inputs.bootstrap_B.flip(0),
            baseline_B=inputs.baseline_B.flip(0),
            kl_coefficient=0.0,
        ),
        **options,
    )
    for few, many in (
        (clean.advantages_BT, dirty.advantages_BT),
        (clean.returns_BT, dirty.returns_BT),
    ):
        torch.testing.assert_close(many.flip(0)[:, :width], few, atol=1e-5, rtol=1e-5)
        assert many.shape == (num, width + more) and not many.flip(0)[:, width:].any()


# Turns as actions


def test_one_value_a_turn_by_hand() -> None:
    # R = (½²·1, ½²·2) = (¼, ½), d = ½³·½ = 1/16, λ_turn = ½
    #   first:  V = (1, 2): A_2 = ½ - 2 = -3/2, A_1 = ¼ + 1/16·2 - 1 + 1/32·-3/2 = -43/64
    #   and cut off before what is worth 8:     A_2 = ½ + 1/16·8 - 2 = -1, A_1 = -5/8 - 1/32 = -21/32
    options = {**TWO_DISCOUNTS, "turn_lambda": 0.5, "value_level": "action_first"}
    credit = credit_of(two_turns(), **options)
    assert credit.advantages_BT.tolist() == [[-43 / 64] * 3 + [-1.5] * 3]
    assert credit.returns_BT.tolist() == [[21 / 64] * 3 + [0.5] * 3]
    assert credit.value_mask_BT is not None
    assert credit.value_mask_BT.tolist() == [[True, False, False, True, False, False]]
    assert credit_of(two_turns(8.0), **options).advantages_BT.tolist() == [[-21 / 32] * 3 + [-1.0] * 3]


def test_the_mean_of_a_turns_values_by_hand() -> None:
    # V = ((1 + 2 + 4) / 3, (2 + 1 + 3) / 3) = (7/3, 2): A_2 = ½ - 2, A_1 = ¼ + ⅛ - 7/3 + 1/32·-3/2
    credit = credit_of(two_turns(), **TWO_DISCOUNTS, turn_lambda=0.5, value_level="action_mean")
    first = 3 / 8 - 7 / 3 - 3 / 64
    torch.testing.assert_close(credit.advantages_BT, torch.tensor([[first] * 3 + [-1.5] * 3]))
    torch.testing.assert_close(credit.returns_BT, torch.tensor([[first + 7 / 3] * 3 + [0.5] * 3]))
    assert credit.value_mask_BT is None  # every value is a part of the mean


@given(games, fractions, fractions, fractions)
def test_a_turns_advantage_is_that_of_its_first_token_where_lambda_is_one_inside(
    drawn: list[Game], gamma: float, turn_gamma: float, turn_lambda: float
) -> None:
    """A turn of n tokens takes n steps: the two levels mean the same returns."""
    options = {"gamma": gamma, "gae_lambda": 1.0, "turn_gamma": turn_gamma, "turn_lambda": turn_lambda}
    inputs = laid_out(drawn)
    tokens = credit_of(inputs, **options)
    turns = credit_of(inputs, **options, value_level="action_first")
    first_BT = turns.value_mask_BT
    for by_token, by_turn in (
        (tokens.advantages_BT, turns.advantages_BT),
        (tokens.returns_BT, turns.returns_BT),
    ):
        torch.testing.assert_close(by_turn[first_BT], by_token[first_BT], atol=1e-4, rtol=1e-4)


def test_turns_of_one_token_are_tokens() -> None:
    inputs = credit_inputs([[1, 2, 3]], values=[[4, 5, 6]], turns=[[1, 1, 1]])
    options = {"gamma": 0.5, "turn_gamma": 0.5, "gae_lambda": 0.5}
    expected = credit_of(inputs, **options)
    for level in ("action_first", "action_mean"):
        credited = credit_of(inputs, **options, value_level=level)
        torch.testing.assert_close(credited.advantages_BT, expected.advantages_BT)


def test_the_critic_learns_nothing_from_values_that_are_not_used() -> None:
    # errors 1, 100, 4 and 100; the 100s are of later tokens: (1 + 4) / 2 firsts, times c_v = ½
    inputs = loss_inputs(
        [0, 0, 1, 1],
        values_N=[0.0, 0.0, 0.0, 0.0],
        returns_N=[1.0, 10.0, 2.0, 10.0],
        value_mask_N=torch.tensor([True, False, True, False]),
        num_values=2,
    )
    output = PPO(value_coef=0.5).loss(inputs)
    assert float(output.metrics["loss/value"]) == pytest.approx(2.5)
    assert float(output.loss) == pytest.approx(1.25)


def test_defaults_are_plain_gae() -> None:
    for name in ("turn_gamma", "turn_lambda", "value_level"):
        assert (
            ActorCriticAlgorithm.model_fields[name].default
            == {
                "turn_gamma": 1.0,
                "turn_lambda": None,
                "value_level": "token",
            }[name]
        )
    assert PPO().bootstrap_truncated


@given(games)
def test_the_mean_of_equal_values_is_the_first_of_them(drawn: list[Game]) -> None:
    inputs = laid_out([([[(r, turn[0][1]) for r, _ in turn] for turn in turns], p) for turns, p in drawn])
    first, mean = (
        turn_advantages(
            inputs.rewards_BT,
            inputs.values_BT,
            inputs.mask_BT,
            inputs.positions_BT,
            value=value,
            gamma=0.9,
            turn_gamma=0.8,
            turn_lambda=0.7,
            bootstrap_B=inputs.bootstrap_B,
        )[0]
        for value in ("first", "mean")
    )
    torch.testing.assert_close(first, mean, atol=1e-4, rtol=1e-4)


# Without a critic


def test_without_a_critic_a_rollout_earns_what_its_turns_earn() -> None:
    # β = ½: turns earn (1, 2 - ½ · 2) and (4): 2 and 4, and with γ_turn = ½ 1 + ½ · 1 = 1.5 and 4
    inputs = credit_inputs(
        [[0, 1, 2], [4]], groups=[3, 3], kl=[[0, 0, 2], [0]], kl_coefficient=0.5, turns=[[2, 1], [1]]
    )
    assert RLOO().credit(inputs).advantages_BT.tolist() == [[-2.0] * 3, [2.0, 0, 0]]
    assert RLOO(turn_gamma=0.5).credit(inputs).advantages_BT.tolist() == [[-2.5] * 3, [2.5, 0, 0]]
    grpo = GRPO(scale_by_deviation=False, turn_gamma=0.5)
    assert grpo.credit(inputs).advantages_BT.tolist() == [[-1.25] * 3, [1.25, 0, 0]]


def test_reinforce_pps_return_to_go_over_turns_by_hand() -> None:
    # γ = ½, γ_turn = ½: 2 at the end, 1 + ¼ · 2 = 1.5 before it, ½ · 1.5 first; and 4: whitened over four
    inputs = credit_inputs([[0, 1, 2], [4]], turns=[[2, 1], [1]])
    returns = torch.tensor([0.75, 1.5, 2.0, 4.0])
    expected = (returns - returns.mean()) / returns.std()
    advantages_BT = ReinforcePP(gamma=0.5, turn_gamma=0.5).credit(inputs).advantages_BT
    torch.testing.assert_close(advantages_BT[inputs.mask_BT], expected)


def test_groups_are_constant_in_what_is_compared() -> None:
    # earlier is better where later counts half: 1 + ½ · 0 and 0 + ½ · 1
    early = played(((5,), (6,), 1.0, True), ((7,), (8,), 0.0, False))
    late = played(((5,), (6,), 0.0, True), ((7,), (8,), 1.0, False), lease_id=0)
    other = [played(((5,), (6,), reward, True), lease_id=2) for reward in (1.0, 2.0)]
    kept, _ = GRPO(drop_constant_groups=True).select([early, late, *other], [])
    assert kept == other
    kept, _ = GRPO(drop_constant_groups=True, turn_gamma=0.5).select([early, late, *other], [])
    assert kept == [early, late, *other]


def test_a_whole_games_ratio_is_one_product() -> None:
    # RLOO: two turns, ratios 2 · ½ · 2 = 2, clipped at 1.2 with A = 1
    log2 = math.log(2)
    inputs = loss_inputs([0, 0, 0], logprobs_N=[log2, -log2, log2], advantages_N=[1.0, 1.0, 1.0])
    assert float(RLOO().loss(inputs).loss) == pytest.approx(-1.2)
    assert RLOO.traits.whole_responses
