"""A2C's loss, and every option of the algorithms with a critic, by hand."""

import math
from typing import Any

import pytest
import torch

from learner.algorithms.a2c import A2C
from learner.algorithms.ppo import PPO
from learner.functional.ratios import clipped_surrogate, value_loss
from learner.functional.rewards import spread_over_tokens
from tests.learner.inputs import credit_inputs, loss_inputs

LN2 = math.log(2)


def gradient(output: torch.Tensor, of: torch.Tensor) -> list[float]:
    (slope,) = torch.autograd.grad(output.sum(), of)
    return slope.tolist()  # type: ignore[no-any-return]


# A2C


def test_a2cs_loss_by_hand() -> None:
    # policy:  -(2 · -1 + -1 · -3) / 2 = -.5
    # value:   (1² + 2²) / 2 = 2.5, times .5           +1.25
    # entropy: mean 3, times .1                        -.3
    inputs = loss_inputs(
        [0, 0],
        logprobs_N=[-1.0, -3.0],
        old_logprobs_N=[-1.0, -3.0],
        advantages_N=[2.0, -1.0],
        returns_N=[1.0, 0.0],
        values_N=[0.0, 2.0],
        entropies_N=[2.0, 4.0],
    )
    output = A2C(entropy_coef=0.1).loss(inputs)
    assert float(output.metrics["loss/policy"]) == pytest.approx(-0.5)
    assert float(output.metrics["loss/value"]) == pytest.approx(2.5)
    assert float(output.loss) == pytest.approx(-0.5 + 1.25 - 0.3)
    assert float(output.metrics["approx_kl"]) == 0


def test_a2cs_gradient_is_the_policy_gradient() -> None:
    inputs = loss_inputs([0, 0], logprobs_N=[-1.0, -3.0], advantages_N=[2.0, -1.0])
    inputs.logprobs_N.requires_grad_()
    assert gradient(A2C().loss(inputs).loss, inputs.logprobs_N) == [-1.0, 0.5]


def test_a2cs_defaults_are_the_published_method() -> None:
    """Stable-Baselines3's as RL4LMs runs it: one step, on whole returns; but of AdamW, without a discount."""
    a2c = A2C()
    assert (a2c.learning_rate, a2c.gamma, a2c.gae_lambda, a2c.max_grad_norm) == (7e-4, 1.0, 1.0, 0.5)
    assert (a2c.num_epochs, a2c.minibatch_size, a2c.advantage_whitening) == (1, None, "none")
    assert (a2c.value_coef, a2c.entropy_coef) == (0.5, 0.0)
    assert (a2c.optimizer.name, a2c.optimizer.eps, a2c.optimizer.weight_decay) == ("adamw", 1e-8, 1e-6)


# The policy's loss


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (5.0, -1.0, 3.0, 0.0),  # min(-5, -1.2) = -5, held at 3 · -1: the loss and its gradient stop
        (2.0, -1.0, 2.0, 1.0),  # not yet there
        (0.5, -1.0, 0.8, 0.0),  # the ordinary clip
        (5.0, 1.0, -1.2, 0.0),  # good tokens are none of its business
        (0.5, 1.0, -0.5, -1.0),
    ],
)
def test_dual_clip_bounds_the_loss_of_bad_tokens(
    ratio: float, advantage: float, loss: float, slope: float
) -> None:
    ratio_N = torch.tensor([ratio], requires_grad=True)
    got = clipped_surrogate(ratio_N, torch.tensor([advantage]), 0.2, dual_clip=3.0)
    assert got.item() == pytest.approx(loss)
    assert gradient(got, ratio_N) == pytest.approx([slope])


def test_dual_clip_is_openrls_bound_on_the_ratio() -> None:
    """OpenRL takes min(ρ, 3) before everything else; for A < 0 that is the paper's max(min(…), 3A)."""
    ratio_N, advantages_N = torch.linspace(0.1, 6, 60), torch.full((60,), -0.7)
    ours_N = clipped_surrogate(ratio_N, advantages_N, 0.2, dual_clip=3.0)
    theirs_N = clipped_surrogate(ratio_N.clamp(max=3.0), advantages_N, 0.2)
    torch.testing.assert_close(ours_N, theirs_N)


def test_the_ppo_loss_takes_the_dual_clip() -> None:
    inputs = loss_inputs([0], logprobs_N=[math.log(5)], advantages_N=[-1.0])
    assert float(PPO().loss(inputs).loss) == pytest.approx(5)
    assert float(PPO(dual_clip=3.0).loss(inputs).loss) == pytest.approx(3)


# The value's loss: R = 3, V_old = 0


@pytest.mark.parametrize(
    ("value", "loss", "slope"),
    [
        (1.0, 6.25, 0.0),  # held at .5: 2.5²; unclipped 2² = 4 is less
        (4.0, 6.25, 0.0),  # past the return, and still held
        (7.0, 16.0, 8.0),  # unclipped (3 - 7)² = 16 is more than 6.25: it may come back
        (-1.0, 16.0, -8.0),
        (0.25, 7.5625, -5.5),
    ],
)
def test_the_pessimistic_value_clip_takes_the_larger_loss(value: float, loss: float, slope: float) -> None:
    values_N = torch.tensor([value], requires_grad=True)
    got = value_loss(values_N, torch.tensor([0.0]), torch.tensor([3.0]), 0.5, pessimistic=True)
    assert got.item() == pytest.approx(loss)
    assert gradient(got, values_N) == pytest.approx([slope])


@pytest.mark.parametrize(
    ("value", "loss", "slope"),
    [
        (2.5, 0.25, -1.0),  # ½², a square as ever
        (1.0, 3.0, -2.0),  # error 2: 1 · (4 - 1), slope 2δ
        (9.0, 11.0, 2.0),  # error -6: 1 · (12 - 1)
        (2.0, 1.0, -2.0),  # where both meet
    ],
)
def test_huber_counts_large_errors_linearly(value: float, loss: float, slope: float) -> None:
    values_N = torch.tensor([value], requires_grad=True)
    got = value_loss(values_N, torch.zeros(1), torch.tensor([3.0]), None, huber_delta=1.0)
    assert got.item() == pytest.approx(loss)
    assert gradient(got, values_N) == pytest.approx([slope])


def test_huber_is_torchs_in_units_of_a_square() -> None:
    values_N, returns_N = torch.linspace(-30, 30, 61), torch.zeros(61)
    expected_N = 2 * torch.nn.functional.huber_loss(values_N, returns_N, reduction="none", delta=10.0)
    torch.testing.assert_close(value_loss(values_N, values_N, returns_N, None, huber_delta=10.0), expected_N)


def test_the_ppo_loss_takes_both() -> None:
    inputs = loss_inputs([0], values_N=[7.0], returns_N=[3.0])
    for options, loss in (
        ({}, 16.0),
        ({"value_clip_range": 0.5}, 6.25),
        ({"value_clip_range": 0.5, "value_clip_pessimistic": True}, 16.0),
        ({"huber_delta": 1.0}, 7.0),
        ({"huber_delta": 1.0, "value_clip_range": 0.5}, 4.0),
    ):
        changed: dict[str, Any] = options  # type: ignore[assignment]
        assert float(PPO(**changed).loss(inputs).metrics["loss/value"]) == pytest.approx(loss)
        assert float(PPO(**changed, value_coef=2.0).loss(inputs).loss) == pytest.approx(2 * loss)


# KL in the loss, and weights of tokens that another policy drew


def test_a_kl_term_is_added_by_its_coefficient() -> None:
    inputs = loss_inputs([0, 0], kl_N=[0.2, 0.6], kl_coefficient=0.5)
    for algorithm in (PPO(), A2C()):
        output = algorithm.loss(inputs)
        assert float(output.metrics["loss/kl"]) == pytest.approx(0.4)
        assert float(output.loss) == pytest.approx(0.2)


def test_importance_weighs_the_policys_loss_alone() -> None:
    inputs = loss_inputs(
        [0, 0],
        logprobs_N=[LN2, 0.0],
        advantages_N=[1.0, -2.0],
        values_N=[1.0, 1.0],
        importance_N=[0.5, 2.0],
    )
    output = PPO().loss(inputs)  # surrogates -1.2 and 2
    assert float(output.metrics["loss/policy"]) == pytest.approx((0.5 * -1.2 + 2 * 2) / 2)
    assert float(output.metrics["loss/value"]) == pytest.approx(1)


# Rewards and advantages


def test_rewards_are_scaled_before_the_penalty() -> None:
    # 10 · (0, 1) - .5 · (1, 2) = (-.5, 9), γ = λ = 1, values 0: returns (8.5, 9)
    inputs = credit_inputs([[0, 1]], kl=[[1, 2]], kl_coefficient=0.5)
    credit = PPO(reward_scale=10.0, gamma=1.0, gae_lambda=1.0).credit(inputs)
    torch.testing.assert_close(credit.returns_BT, torch.tensor([[8.5, 9.0]]))


def test_spread_rewards_by_hand() -> None:
    # a turn of three tokens; one of one; turns of two and one
    spread_BT = spread_over_tokens(
        torch.tensor([[0.0, 0, 3], [2, 0, 0], [0, 1, 4]]),
        torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 1]]),
        torch.tensor([[0, 1, 2], [0, 0, 0], [0, 1, 0]]),
    )
    assert spread_BT.tolist() == [[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [0.5, 0.5, 4.0]]


def test_spread_rewards_reach_the_first_token_undiscounted_by_gae() -> None:
    # γ = ½, λ = 0, values 0: A_t is the token's own reward; at the last token alone, the others get nothing
    inputs = credit_inputs([[0, 0, 3]], kl=[[0, 2, 0]], kl_coefficient=0.5)
    spread = PPO(gamma=0.5, gae_lambda=0.0, spread_rewards=True).credit(inputs)
    assert spread.advantages_BT.tolist() == [[1.0, 0.0, 1.0]]  # the penalty stays where it was
    assert PPO(gamma=0.5, gae_lambda=0.0).credit(inputs).advantages_BT.tolist() == [[0.0, -1.0, 3.0]]


def test_whitening_over_the_batch_by_hand() -> None:
    # advantages 1, 2 and 3: mean 2, deviation 1. Returns stay as they are, and minibatches alone
    inputs = credit_inputs([[1, 2], [3]])
    ppo = PPO(gamma=0.0, advantage_whitening="batch")
    credit = ppo.credit(inputs)
    assert credit.advantages_BT.tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert credit.returns_BT.tolist() == [[1.0, 2.0], [3.0, 0.0]]
    half_N = torch.tensor([-1.0, 0.0])
    assert torch.equal(ppo.prepare_minibatch(half_N), half_N)


def test_without_whitening_advantages_stay() -> None:
    ppo = PPO(gamma=0.0, advantage_whitening="none")
    assert ppo.credit(credit_inputs([[1, 2], [3]])).advantages_BT.tolist() == [[1.0, 2.0], [3.0, 0.0]]
    assert ppo.prepare_minibatch(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
