"""PPO's credit and loss, worked by hand."""

import math

import pytest
import torch
from torch import Tensor

from contracts.errors import InputError
from contracts.settings import build
from learner.algorithms.base import CreditInputs, LossInputs
from learner.algorithms.ppo import PPO
from learner.algorithms.supervised import Supervised


def two_tokens(num_tokens: int = 2, **changes: Tensor | None) -> LossInputs:
    """Ratios 2 and ½, advantages 1 and -1, errors of the value 1 and ½, entropies 1 and 3."""
    inputs: dict[str, Tensor | None] = {
        "logprobs_N": torch.tensor([-1 + math.log(2), -1 - math.log(2)]),
        "old_logprobs_N": torch.tensor([-1.0, -1.0]),
        "advantages_N": torch.tensor([1.0, -1.0]),
        "returns_N": torch.tensor([2.0, 0.5]),
        "values_N": torch.tensor([1.0, 0.0]),
        "old_values_N": torch.tensor([0.5, 0.0]),
        "entropies_N": torch.tensor([1.0, 3.0]),
        "kl_N": None,
        "rows_N": torch.tensor([0, 0]),
        "lengths_N": torch.tensor([2, 2]),
    }
    return LossInputs(**(inputs | changes), num_tokens=num_tokens, num_rollouts=1, max_tokens=4)  # type: ignore[arg-type]


def test_loss_by_hand() -> None:
    # surrogate: min(2, 1.2) = 1.2 and min(-½, -.8) = -.8, mean .2            loss  -.2
    # value:     (1² + ½²) / 2 = .625, times .5                                    +.3125
    # entropy:   mean 2, times .1                                                   -.2
    output = PPO(entropy_coef=0.1).loss(two_tokens())
    assert float(output.loss) == pytest.approx(-0.0875)
    assert float(output.metrics["loss/policy"]) == pytest.approx(-0.2)
    assert float(output.metrics["loss/value"]) == pytest.approx(0.625)
    # r - 1 - ln r with r = 2 and ½: (1 - ln 2 + ln 2 - ½) / 2
    assert float(output.metrics["approx_kl"]) == pytest.approx(0.25)
    assert float(output.metrics["clip_fraction"]) == 1.0
    assert float(output.metrics["ratio/mean"]) == pytest.approx(1.25)


def test_loss_with_clipped_values_by_hand() -> None:
    # V of the first token is held at .5 + .25: (2 - .75)² = 1.5625; the second stays: .25
    output = PPO(value_clip_range=0.25, value_coef=1.0).loss(two_tokens())
    assert float(output.metrics["loss/value"]) == pytest.approx((1.5625 + 0.25) / 2)
    assert float(output.loss) == pytest.approx(-0.2 + 0.90625)


def test_without_an_entropy_bonus_no_entropy_is_needed() -> None:
    assert not PPO().needs_entropy and PPO(entropy_coef=0.1).needs_entropy
    assert float(PPO().loss(two_tokens(entropies_N=None)).loss) == pytest.approx(0.1125)


@pytest.mark.parametrize("algorithm", [PPO(entropy_coef=0.1), Supervised()])
def test_a_micro_batchs_loss_is_its_share_of_the_minibatch(algorithm: PPO | Supervised) -> None:
    whole, half = algorithm.loss(two_tokens(2)), algorithm.loss(two_tokens(4))
    assert float(half.loss) == pytest.approx(float(whole.loss) / 2)
    for name, value in whole.metrics.items():
        assert float(half.metrics[name]) == pytest.approx(float(value) / 2)


def test_a_clipped_token_gives_no_gradient() -> None:
    inputs = two_tokens()
    inputs.logprobs_N.requires_grad_()
    PPO(value_coef=0.0).loss(inputs).loss.backward()
    assert inputs.logprobs_N.grad is not None
    assert inputs.logprobs_N.grad.tolist() == [0.0, 0.0]
    inputs = two_tokens(advantages_N=torch.tensor([-1.0, -1.0]))  # the first may come back
    inputs.logprobs_N.requires_grad_()
    PPO(value_coef=0.0).loss(inputs).loss.backward()
    assert inputs.logprobs_N.grad is not None
    assert inputs.logprobs_N.grad.tolist() == pytest.approx([1.0, 0.0])  # ratio 2, over 2 tokens


def credit_inputs(kl_coefficient: float = 0.2) -> CreditInputs:
    return CreditInputs(
        rewards_BT=torch.tensor([[0.0, 1.0], [3.0, 0.0]]),
        kl_BT=torch.tensor([[0.5, -0.5], [1.0, 0.0]]),
        values_BT=torch.tensor([[0.4, 0.6], [0.8, 0.0]]),
        mask_BT=torch.tensor([[True, True], [True, False]]),
        positions_BT=torch.tensor([[0, 1], [0, 0]]),
        groups_B=torch.tensor([0, 1]),
        bootstrap_B=torch.zeros(2),
        baseline_B=torch.zeros(2),
        kl_coefficient=kl_coefficient,
    )


def test_credit_by_hand() -> None:
    # β = .2: rewards (0 - .1, 1 + .1) and (3 - .2); γ = ½, λ = 1
    #   δ = (-.1 + .3 - .4, 1.1 - .6) = (-.2, .5)      A = (-.2 + .25, .5) = (.05, .5)
    #   second rollout: 2.8 - .8 = 2
    credit = PPO(gamma=0.5, gae_lambda=1.0).credit(credit_inputs())
    torch.testing.assert_close(credit.advantages_BT, torch.tensor([[0.05, 0.5], [2.0, 0.0]]))
    torch.testing.assert_close(credit.returns_BT, torch.tensor([[0.45, 1.1], [2.8, 0.0]]))


def test_normalised_rewards_by_hand() -> None:
    # without a penalty the three token rewards are 0, 1, 3: mean 4/3, variance (16 + 1 + 25) / 9 / 2 = 7/3;
    # with γ = 0 a return is the token's reward alone
    credit = PPO(gamma=0.0, normalize_rewards=True).credit(credit_inputs(0.0))
    scale = math.sqrt(7 / 3)
    expected = [[-4 / 3 / scale, -1 / 3 / scale], [5 / 3 / scale, 0.0]]
    torch.testing.assert_close(credit.returns_BT, torch.tensor(expected))


def test_advantages_of_a_minibatch_are_whitened_unless_asked_otherwise() -> None:
    advantages = torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(PPO().prepare_minibatch(advantages), torch.tensor([-1.0, 0.0, 1.0]))
    assert torch.equal(PPO(advantage_whitening="none").prepare_minibatch(advantages), advantages)


@pytest.mark.parametrize("reward", [0.0, 0.1, 0.7, -1 / 3])
@pytest.mark.parametrize("value", [0.0, 0.3])
def test_equal_rewards_for_single_tokens_give_exactly_no_credit(reward: float, value: float) -> None:
    column = torch.ones(100, 1)
    inputs = CreditInputs(
        rewards_BT=column * reward,
        kl_BT=column * 0,
        values_BT=column * value,
        mask_BT=column.bool(),
        positions_BT=column.long() * 0,
        groups_B=torch.zeros(len(column)),
        bootstrap_B=torch.zeros(len(column)),
        baseline_B=torch.zeros(len(column)),
        kl_coefficient=0.1,
    )
    for algorithm in (PPO(), PPO(normalize_rewards=True)):
        advantages = algorithm.credit(inputs).advantages_BT[column.bool()]
        assert not algorithm.prepare_minibatch(advantages).any()


def test_supervised_loss_is_the_mean_negative_log_likelihood() -> None:
    output = Supervised().loss(two_tokens())  # log-probabilities -1 + ln 2 and -1 - ln 2
    assert float(output.loss) == pytest.approx(1.0)
    assert float(output.metrics["loss/policy"]) == pytest.approx(1.0)


def test_defaults_are_the_published_method() -> None:
    """Stable-Baselines3's PPO as RL4LMs runs it, without its discount; rewards are in units of their own."""
    ppo = PPO()
    assert (ppo.learning_rate, ppo.num_epochs, ppo.minibatch_size) == (3e-4, 10, 64)
    assert (ppo.gamma, ppo.gae_lambda, ppo.clip_range, ppo.value_clip_range) == (1.0, 0.95, 0.2, None)
    assert (ppo.entropy_coef, ppo.value_coef, ppo.max_grad_norm, ppo.target_kl) == (0.0, 0.5, 0.5, None)
    assert (ppo.advantage_whitening, ppo.normalize_rewards) == ("minibatch", False)
    assert (ppo.reward_scale, ppo.normalize_values) == ("deviation", True)
    assert ppo.optimizer.weight_decay == 1e-6


@pytest.mark.parametrize(
    ("option", "value"), [("clip_range", 0.0), ("gamma", 1.5), ("num_epochs", 0), ("learning_rate", "fast")]
)
def test_a_wrong_option_is_refused_by_its_name(option: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"algorithm\.{option}: got {value!r}"):
        build(PPO, {option: value}, "algorithm")
