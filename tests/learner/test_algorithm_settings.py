"""Meaningless settings are refused with the value and a remedy; others stay as published."""

from typing import Any

import pytest

from contracts.components import create
from contracts.errors import InputError
from learner.algorithms import ALGORITHMS
from learner.algorithms.base import Algorithm
from learner.algorithms.nlpo import NLPO


def algorithm(name: str, **options: Any) -> Any:
    return create("algorithm", name, options, ALGORITHMS, Algorithm)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_defaults_are_an_algorithm(name: str) -> None:
    made = algorithm(name)
    assert made.target_kl is None or name == "trpo"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        # NLPO
        ("nlpo", {"top_p": 0.0}, "algorithm.top_p: got 0.0; Input should be greater than 0"),
        ("nlpo", {"top_p": 1.5}, "algorithm.top_p: got 1.5; Input should be less than or equal to 1"),
        ("nlpo", {"top_p": float("nan")}, "algorithm.top_p: got nan"),
        ("nlpo", {"top_k": 50}, "got top_p=0.9 and top_k=50; the mask needs exactly one of them"),
        ("nlpo", {"top_p": None}, "got top_p=None and top_k=None; the mask needs exactly one of them"),
        ("nlpo", {"top_k": 0, "top_p": None}, "algorithm.top_k: got 0"),
        ("nlpo", {"min_tokens_to_keep": 0}, "algorithm.min_tokens_to_keep: got 0"),
        ("nlpo", {"target_update_iterations": 0}, "algorithm.target_update_iterations: got 0"),
        ("nlpo", {"compatibility": "trl"}, "algorithm.compatibility: got 'trl'"),
        # rejection sampling and supervised fine-tuning
        ("rejection", {"top_n": 8}, "got top_share=0.5 and top_n=8; set exactly one of the two"),
        ("rejection", {"top_share": None}, "got top_share=None and top_n=None; set exactly one of the two"),
        ("rejection", {"top_share": 0.0}, "algorithm.top_share: got 0.0"),
        ("rejection", {"top_share": 50.0}, "algorithm.top_share: got 50.0"),
        ("rejection", {"unit": "token"}, "algorithm.unit: got 'token'; Input should be 'rollout' or 'turn'"),
        ("rejection", {"kl": {"placement": "reward"}}, "expected kl.placement=loss"),
        ("rejection", {"target_kl": 0.1}, "algorithm.target_kl: got 0.1; Input should be None"),
        ("supervised", {"kl": {"coefficient": 0.1}}, "supervised fine-tuning has no reference to stay near"),
        ("supervised", {"loss_on": "prompt"}, "algorithm.loss_on: got 'prompt'"),
        # from data
        ("a_lol", {"ppo_clip": 0.0}, "algorithm.ppo_clip: got 0.0; Input should be greater than 0"),
        ("a_lol_kl", {"kl_beta": 0.0}, "algorithm.kl_beta: got 0.0"),
        ("a_lol_kl", {"kl_form": "k3"}, "Input should be 'log_ratio' or 'unbiased'"),
        ("wbc", {"sampling_strategy": "priority"}, "Input should be 'good_priority', 'good_random' or"),
        ("nll", {"reduction": "max"}, "algorithm.reduction: got 'max'; Input should be 'sum' or 'mean'"),
        ("r_gold", {"floor": 1.5}, "algorithm.floor: got 1.5"),
        ("r_lol", {"kl": {"coefficient": 0.1}}, "algorithm.kl: there is no such option"),
        ("dpo", {"loss_type": "ipo", "label_smoothing": 0.1}, "got label_smoothing=0.1 with loss_type=ipo"),
        (
            "dpo",
            {"label_smoothing": 0.5},
            "algorithm.label_smoothing: got 0.5; Input should be less than 0.5",
        ),
        ("dpo", {"sampling_strategy": "good_random"}, "algorithm.sampling_strategy: there is no such option"),
        ("pro", {"sft_weight": -1.0}, "algorithm.sft_weight: got -1.0"),
        # without a critic
        ("grpo", {"critic_learning_rate": 1e-3}, "algorithm.critic_learning_rate: got 0.001"),
        ("grpo", {"value_coef": 0.5}, "algorithm.value_coef: there is no such option"),
        ("grpo", {"clip_range_high": 0.0}, "algorithm.clip_range_high: got 0.0"),
        ("grpo", {"aggregation": "mean"}, "algorithm.aggregation: got 'mean'; Input should be 'token_mean'"),
        ("grpo", {"scale_by_deviaton": False}, "did you mean 'scale_by_deviation'?"),
        ("rloo", {"num_epochs": 0}, "algorithm.num_epochs: got 0"),
        ("reinforce_pp", {"gamma": 1.1}, "algorithm.gamma: got 1.1"),
        # with a critic
        ("a2c", {"num_epochs": 2}, "algorithm.num_epochs: got 2; Input should be 1"),
        ("a2c", {"minibatch_size": 64}, "algorithm.minibatch_size: got 64; Input should be None"),
        ("a2c", {"minibatch_tokens": 64}, "algorithm.minibatch_tokens: got 64; Input should be None"),
        ("ppo", {"minibatch_tokens": 64, "minibatch_size": 8}, "set algorithm.minibatch_size=null"),
        ("trpo", {"minibatch_tokens": 0}, "algorithm.minibatch_tokens: got 0"),
        ("a2c", {"target_kl": 0.1}, "algorithm.target_kl: got 0.1; Input should be None"),
        ("ppo", {"dual_clip": 1.0}, "algorithm.dual_clip: got 1.0; Input should be greater than 1"),
        ("ppo", {"huber_delta": 0.0}, "algorithm.huber_delta: got 0.0"),
        ("ppo", {"reward_scale": -1.0}, "algorithm.reward_scale: got -1.0"),
        ("ppo", {"advantage_whitening": "all"}, "Input should be 'none', 'minibatch' or 'batch'"),
        ("ppo", {"value_clip_pessimistic": True}, "value_clip_pessimistic=true without a value_clip_range"),
        # the KL
        ("ppo", {"kl": {"estimator": "forward"}}, "expected placement=loss with it"),
        ("ppo", {"kl": {"estimator": "forward_full"}}, "measures KL(reference‖policy)"),
        ("ppo", {"kl": {"estimator": "k4"}}, "algorithm.kl.estimator: got 'k4'"),
        ("ppo", {"kl": {"coefficient": -0.1}}, "algorithm.kl.coefficient: got -0.1"),
        ("ppo", {"kl": {"target": 0.0}}, "algorithm.kl.target: got 0.0"),
        ("ppo", {"kl": {"target": 0.1, "coefficient": 0.0}}, "controllers multiply the coefficient"),
        ("ppo", {"optimizer": {"name": "sgd"}}, "algorithm.optimizer.name: got 'sgd'"),
    ],
)
def test_what_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        algorithm(name, **options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "options", "stays"),
    [
        (
            "grpo",
            {"kl": {"coefficient": 0.02}},
            {"placement": "loss", "estimator": "k3_exact", "coefficient": 0.02},
        ),
        ("grpo", {"kl": {"estimator": "k1"}}, {"placement": "loss", "estimator": "k1", "coefficient": 0.04}),
        ("rejection", {"kl": {"coefficient": 0.2}}, {"placement": "loss", "coefficient": 0.2}),
        ("rloo", {"kl": {"target": 0.5}}, {"placement": "reward", "coefficient": 0.05, "target": 0.5}),
        ("ppo", {"kl": {"target": 0.5}}, {"coefficient": 0.1, "target": 0.5}),
    ],
)
def test_an_option_of_the_kl_leaves_the_others_as_the_algorithm_has_them(
    name: str, options: dict[str, Any], stays: dict[str, Any]
) -> None:
    kl = algorithm(name, **options).kl
    assert {key: getattr(kl, key) for key in stays} == stays


def test_an_option_of_the_optimizer_leaves_dapo_its_weight_decay() -> None:
    optimizer = algorithm("dapo", optimizer={"name": "rmsprop", "eps": 1e-5}).optimizer
    assert (optimizer.name, optimizer.eps, optimizer.weight_decay) == ("rmsprop", 1e-5, 0.1)


# NLPO


def test_nlpo_is_ppo_within_the_likeliest_tokens_of_a_mask_that_is_renewed() -> None:
    nlpo = NLPO()
    assert (nlpo.mask_rule().top_p, nlpo.mask_rule().top_k, nlpo.mask_rule().min_tokens_to_keep) == (
        0.9,
        None,
        1,
    )
    assert [version for version in range(61) if nlpo.syncs_mask(version)] == [0, 20, 40, 60]
    assert nlpo.renormalizes()
    assert NLPO(top_p=None, top_k=5).mask_rule().top_k == 5


def test_rl4lms_nlpo_never_renews_never_renormalises_and_keeps_a_hundred() -> None:
    nlpo = algorithm("nlpo", compatibility="rl4lms")
    assert not any(map(nlpo.syncs_mask, range(100)))
    assert not nlpo.renormalizes()
    assert nlpo.mask_rule().min_tokens_to_keep == 100
    assert algorithm("nlpo", compatibility="rl4lms", min_tokens_to_keep=7).mask_rule().min_tokens_to_keep == 7


# From data


def test_what_learns_from_data_is_as_published() -> None:
    for name in ("nll", "wbc", "r_gold", "r_lol", "a_lol", "a_lol_ref_free", "a_lol_seq", "a_lol_kl"):
        made = algorithm(name)
        assert (made.learning_rate, made.minibatch_size, made.max_grad_norm) == (2e-4, 16, 0.3)
        assert (made.reduction, made.sampling_strategy) == ("sum", None)
        optimizer = made.optimizer
        assert (optimizer.beta1, optimizer.beta2, optimizer.eps) == (0.9, 0.999, 1e-6)
        assert optimizer.weight_decay == 0.01  # which LoL-RL's flag says is 0, and its optimiser overrules
    assert [algorithm(name).ppo_clip for name in ("r_lol", "a_lol", "a_lol_seq")] == [0.9, 0.9, 0.9]
    assert (algorithm("r_gold").floor, algorithm("a_lol_kl").kl_beta) == (0.1, 0.2)
    assert (algorithm("dpo").beta, algorithm("pro").sft_weight) == (0.1, 0.05)
    assert [algorithm(name).minibatch_size for name in ("dpo", "pro")] == [32, 32]  # 16 pairs
