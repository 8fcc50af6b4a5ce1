"""GRPO, RLOO and REINFORCE++: credit and loss worked by hand, and invariants of groups and weights."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.rollout import Rollout
from learner.algorithms.grpo import GRPO
from learner.algorithms.reinforce_pp import ReinforcePP
from learner.algorithms.rloo import RLOO
from learner.functional.aggregation import Aggregation, sum_by_response, token_weights
from learner.functional.groups import group_advantages, leave_one_out
from learner.optimization.kl_control import KLSettings
from tests.learner.inputs import credit_inputs, loss_inputs
from tests.learner.tiny import rollout

LN2 = math.log(2)

DR_GRPO = GRPO(scale_by_deviation=False, aggregation="constant")
DAPO = GRPO(
    aggregation="token_mean", clip_range_high=0.28, kl=KLSettings(coefficient=0.0), drop_constant_groups=True
)

scores = st.lists(
    st.tuples(st.integers(0, 3), st.floats(-10, 10, width=32)), min_size=1, max_size=12
)  # (group, score)
lengths = st.lists(st.integers(1, 9), min_size=1, max_size=6)


# Credit


def test_grpos_credit_by_hand() -> None:
    # group 4: rewards 1, 2, 3, mean 2, unbiased deviation 1: (-1, 0, 1) / 1.0001; group 9: 5, alone: 0
    inputs = credit_inputs([[0, 1], [2], [0, 0, 3], [5]], groups=[4, 4, 4, 9])
    expected = torch.tensor([[-1.0, -1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0]])
    torch.testing.assert_close(GRPO().credit(inputs).advantages_BT, expected / 1.0001)


def test_dr_grpo_divides_by_no_deviation() -> None:
    inputs = credit_inputs([[0, 1], [5], [0]], groups=[4, 4, 4])  # mean 2
    assert DR_GRPO.credit(inputs).advantages_BT.tolist() == [[-1.0, -1.0], [3.0, 0.0], [-2.0, 0.0]]


def test_rloos_credit_by_hand() -> None:
    # β = .5: scores 1 - .5 · (.2 + .4) = .7, 2 - .5 · (-.6) = 2.3, 4; each less the mean of the other two
    inputs = credit_inputs(
        [[0, 1], [2], [4]], groups=[0, 0, 0], kl=[[0.2, 0.4], [-0.6], [0]], kl_coefficient=0.5
    )
    expected = [0.7 - 3.15, 2.3 - 2.35, 4 - 1.5]
    advantages_BT = RLOO().credit(inputs).advantages_BT
    torch.testing.assert_close(advantages_BT[:, 0], torch.tensor(expected))
    assert advantages_BT[1, 1] == 0  # padding
    torch.testing.assert_close(advantages_BT[0, 1], advantages_BT[0, 0])


def test_reinforce_pps_credit_by_hand() -> None:
    # β = 1: tokens earn (0 - 1, 2 - 0) and (3): returns-to-go (1, 2) and 3; mean 2, deviation 1
    inputs = credit_inputs([[0, 2], [3]], kl=[[1, 0], [0]], kl_coefficient=1.0)
    expected = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
    torch.testing.assert_close(ReinforcePP().credit(inputs).advantages_BT, expected)


def test_reinforce_pp_discounts_if_asked() -> None:
    # γ = ½: returns (0 + ½ · 2, 2) and 3: the same numbers
    credit = ReinforcePP(gamma=0.5).credit(credit_inputs([[0, 2], [3]]))
    torch.testing.assert_close(credit.advantages_BT, torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))


@pytest.mark.parametrize("score", [0.1, 1 / 3, 1000.1])
@pytest.mark.parametrize("size", [2, 3, 7])
def test_a_group_of_equal_rewards_gets_exactly_no_credit(score: float, size: int) -> None:
    """In float32 the mean of seven 1000.1 is not 1000.1, and its deviation is of the size of the error."""
    equal_B, group_B = torch.full((size,), score), torch.zeros(size)
    assert not group_advantages(equal_B, group_B, scale=True).any()
    assert not leave_one_out(equal_B, group_B).any()


@given(scores)
def test_group_advantages_add_up_to_zero_within_each_group(drawn: list[tuple[int, float]]) -> None:
    groups_B, scores_B = (torch.tensor(column) for column in zip(*drawn, strict=True))
    for scale in (False, True):
        advantages_B = group_advantages(scores_B, groups_B, scale=scale)
        for group in groups_B.unique():
            assert abs(float(advantages_B[groups_B == group].sum())) < 1e-4
    assert abs(float(leave_one_out(scores_B, groups_B).sum())) < 1e-3


@given(scores, st.floats(-100, 100, width=32))
def test_groups_mind_no_offset_and_no_order(drawn: list[tuple[int, float]], offset: float) -> None:
    groups_B, scores_B = (torch.tensor(column) for column in zip(*drawn, strict=True))
    order_B = torch.arange(len(drawn)).flip(0)
    for credit in (lambda s, g: group_advantages(s, g, scale=False), leave_one_out):
        expected_B = credit(scores_B, groups_B)
        torch.testing.assert_close(credit(scores_B + offset, groups_B), expected_B, atol=1e-4, rtol=0)
        torch.testing.assert_close(credit(scores_B[order_B], groups_B[order_B]), expected_B[order_B])


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=4), st.integers(2, 3))
def test_the_leave_one_out_gradient_is_unbiased(rewards: list[float], size: int) -> None:
    """Summed over every group of `size` draws from a softmax: exactly ∇ E[reward]."""
    rewards_A = torch.tensor(rewards, dtype=torch.float64)
    logits_A = torch.linspace(-1, 1, len(rewards), dtype=torch.float64, requires_grad=True)
    logprobs_A = logits_A.log_softmax(-1)
    (expected,) = torch.autograd.grad((logprobs_A.exp() * rewards_A).sum(), logits_A, retain_graph=True)
    surrogate = torch.zeros((), dtype=torch.float64)
    for actions_B in torch.cartesian_prod(*[torch.arange(len(rewards))] * size):
        chance = logprobs_A[actions_B].sum().exp().detach()
        advantages_B = leave_one_out(rewards_A[actions_B], torch.zeros(size))
        surrogate = surrogate + chance * (advantages_B * logprobs_A[actions_B]).mean()
    (got,) = torch.autograd.grad(surrogate, logits_A)
    torch.testing.assert_close(got, expected)


# What a token weighs


@given(lengths)
def test_weights_of_a_minibatch_add_up_to_one(lengths: list[int]) -> None:
    lengths_N = torch.tensor(lengths).repeat_interleave(torch.tensor(lengths))
    counts = {"num_tokens": sum(lengths), "num_rollouts": len(lengths), "max_tokens": 9}
    hows: Sequence[Aggregation] = ("token_mean", "sequence_mean")
    for how in hows:
        assert float(token_weights(lengths_N, how, **counts).sum()) == pytest.approx(1)
    # constant: what the responses fill of the room that they had
    share = sum(lengths) / (9 * len(lengths))
    assert float(token_weights(lengths_N, "constant", **counts).sum()) == pytest.approx(share)


@pytest.mark.parametrize(
    ("algorithm", "loss"),
    [
        (GRPO(), -(1 + 4) / 2),  # every response counts the same
        (DAPO, -(1 * 1 + 3 * 4) / 4),  # every token
        (DR_GRPO, -(1 * 1 + 3 * 4) / (2 * 10)),  # every token, over the longest possible response
    ],
)
def test_a_short_and_a_long_response(algorithm: GRPO, loss: float) -> None:
    """Ratios of 1; a response of one token with A = 1, one of three tokens with A = 4."""
    output = algorithm.loss(loss_inputs([0, 1, 1, 1], advantages_N=[1.0, 4.0, 4.0, 4.0]))
    assert float(output.loss) == pytest.approx(loss)


# Losses


def test_grpos_loss_by_hand() -> None:
    # response 0: ratio 2, A = 1: min(2, 1.2) = 1.2; k3 .3
    # response 1: ratios ½ and 1, A = -1: min(-½, -.8) = -.8 and -1: mean -.9; k3 .2 and .4: mean .3
    inputs = loss_inputs(
        [0, 1, 1],
        logprobs_N=[LN2, -LN2, 0.0],
        advantages_N=[1.0, -1.0, -1.0],
        kl_N=[0.3, 0.2, 0.4],
        kl_coefficient=0.04,
    )
    output = GRPO().loss(inputs)
    assert float(output.metrics["loss/policy"]) == pytest.approx(-(1.2 - 0.9) / 2)
    assert float(output.metrics["loss/kl"]) == pytest.approx(0.3)
    assert float(output.loss) == pytest.approx(-0.15 + 0.04 * 0.3)
    assert float(output.metrics["clip_fraction"]) == pytest.approx(2 / 3)
    assert float(output.metrics["ratio/mean"]) == pytest.approx(3.5 / 3)


def test_dapo_clips_higher_above() -> None:
    inputs = loss_inputs([0, 0], logprobs_N=[LN2, -LN2], advantages_N=[1.0, -1.0])
    assert float(GRPO().loss(inputs).loss) == pytest.approx(-(1.2 - 0.8) / 2)
    assert float(DAPO.loss(inputs).loss) == pytest.approx(-(1.28 - 0.8) / 2)
    inside = loss_inputs([0, 0], logprobs_N=[math.log(1.25), math.log(0.9)])
    assert float(GRPO().loss(inside).metrics["clip_fraction"]) == 0.5
    assert float(DAPO.loss(inside).metrics["clip_fraction"]) == 0


def test_rloos_ratio_is_that_of_the_whole_response() -> None:
    # response 0: ½ · 4 = 2, A = 1: clipped to 1.2; response 1: 1.1, A = -2: -2.2
    inputs = loss_inputs([0, 0, 1], logprobs_N=[-LN2, 2 * LN2, math.log(1.1)], advantages_N=[1.0, 1.0, -2.0])
    output = RLOO().loss(inputs)
    assert float(output.loss) == pytest.approx(-(1.2 - 2.2) / 2)
    assert float(output.metrics["clip_fraction"]) == 0.5  # of responses
    assert float(output.metrics["ratio/mean"]) == pytest.approx((2 + 1.1) / 2)


def test_on_policy_rloos_gradient_is_reinforces() -> None:
    """-A a token of the response, over the responses: the sum over a response, not its mean."""
    inputs = loss_inputs([0, 0, 1], logprobs_N=[0.0, 0.0, 0.0], advantages_N=[1.0, 1.0, -2.0])
    inputs.logprobs_N.requires_grad_()
    RLOO().loss(inputs).loss.backward()
    assert inputs.logprobs_N.grad is not None
    assert inputs.logprobs_N.grad.tolist() == [-0.5, -0.5, 1.0]


def test_rloo_weighs_responses_drawn_by_another_policy_as_wholes() -> None:
    weights = {"importance_N": [0.5, 1.0, 2.0], "importance_B": [0.5, 2.0]}
    inputs = loss_inputs([0, 0, 1], advantages_N=[1.0, 1.0, -2.0], **weights)
    assert float(RLOO().loss(inputs).loss) == pytest.approx(-(0.5 * 1 + 2 * -2) / 2)
    assert float(ReinforcePP().loss(inputs).loss) == pytest.approx(-(0.5 + 1 + 2 * -2) / 3)  # tokens


def test_reinforce_pps_loss_is_ppos_without_a_critic() -> None:
    inputs = loss_inputs([0, 0, 1], logprobs_N=[LN2, -LN2, 0.0], advantages_N=[1.0, -1.0, 3.0])
    assert float(ReinforcePP().loss(inputs).loss) == pytest.approx(-(1.2 - 0.8 + 3) / 3)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=10))
def test_sums_by_response(lengths: list[int]) -> None:
    rows = sorted(lengths)
    rows = [sorted(set(rows)).index(row) for row in rows]  # every response has a token
    values_N = torch.arange(float(len(rows)))
    expected = [sum(i for i, row in enumerate(rows) if row == b) for b in range(max(rows) + 1)]
    assert sum_by_response(values_N, torch.tensor(rows)).tolist() == expected


# Which rollouts train


def group_of(group: int, *rewards: float) -> list[Rollout]:
    made = [rollout(10 * group + i, (3,), (4,), reward) for i, reward in enumerate(rewards)]
    return [Rollout(one.lease_id, group, one.prompt, one.turns, one.finish_reason) for one in made]


def test_dapo_leaves_groups_of_equal_rewards_out() -> None:
    mixed, equal, alone = group_of(1, 0.0, 1.0, 1.0), group_of(2, 1.0, 1.0), group_of(3, 0.5)
    assert DAPO.select([*mixed, *equal, *alone], []) == (mixed, [])
    assert GRPO().select([*mixed, *equal], []) == ([*mixed, *equal], [])


def test_where_all_groups_are_equal_dapo_keeps_them() -> None:
    """There is nothing to learn from them, and an update of nothing can't be made."""
    equal = group_of(2, 1.0, 1.0)
    assert DAPO.select(equal, []) == (equal, [])


def test_defaults_are_the_published_methods() -> None:
    grpo, rloo, reinforce_pp = GRPO(), RLOO(), ReinforcePP()
    assert (grpo.learning_rate, grpo.clip_range, grpo.num_epochs, grpo.scale_by_deviation) == (
        1e-6,
        0.2,
        1,
        True,
    )
    assert (grpo.kl.placement, grpo.kl.estimator, grpo.kl.coefficient) == ("loss", "k3_exact", 0.04)
    assert (grpo.aggregation, reinforce_pp.aggregation) == ("sequence_mean", "token_mean")
    for penalised, coefficient in ((rloo, 0.05), (reinforce_pp, 0.01)):
        assert (penalised.kl.placement, penalised.kl.estimator, penalised.kl.coefficient) == (
            "reward",
            "k1",
            coefficient,
        )
    assert (reinforce_pp.gamma, rloo.traits.default_group_size, grpo.traits.default_group_size) == (1.0, 8, 8)
