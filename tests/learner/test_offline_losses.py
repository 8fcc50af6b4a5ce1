"""NLL, WBC, GOLD, R-LoL and A-LoL, and which examples an epoch draws: numbers worked by hand, gradients
against derivations, and what splitting and seeds always leave alone.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contracts.errors import LearnerError
from learner.functional import offline
from learner.functional.selection import (
    SamplingStrategy,
    require_finite,
    require_positive,
    select_epoch,
)

# Two responses: tokens with π = (.5, .2) and π_ref = (.25, .4), and one with π = .1, π_ref = .4
PI, REF, ROWS = [0.5, 0.2, 0.1], [0.25, 0.4, 0.4], [0, 0, 1]
RATIOS = [2.0, 0.5, 0.25]  # of whole responses: 2 · ½ = 1, and ¼
WORTH = [3.0, 3.0, 2.0]
NLL = [math.log(2), math.log(5), math.log(10)]

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (logprobs, ref, worth, rows), all a token


def kl(form: offline.KLForm) -> Loss:
    return lambda p, ref, worth, rows: offline.a_lol_kl(p, ref, worth, kl_beta=0.2, form=form)


LOSSES: dict[str, Loss] = {
    "nll": lambda p, ref, worth, rows: offline.nll(p),
    "wbc": lambda p, ref, worth, rows: offline.wbc(p, worth),
    "r_gold": lambda p, ref, worth, rows: offline.r_gold(p, worth),
    "r_lol": lambda p, ref, worth, rows: offline.r_lol(p, ref, worth, rows),
    "a_lol": lambda p, ref, worth, rows: offline.a_lol(p, ref, worth, rows),
    "a_lol_ref_free": lambda p, ref, worth, rows: offline.a_lol_ref_free(p, worth),
    "a_lol_seq": lambda p, ref, worth, rows: offline.a_lol_seq(p, ref, worth),
    "a_lol_kl": kl("log_ratio"),
    "a_lol_true_kl": kl("unbiased"),
}


def logs(probabilities: list[float]) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def gradient(loss: Callable[[Tensor], Tensor], logprobs_N: Tensor) -> Tensor:
    """Gradient of the sum over tokens, by each token's log-probability."""
    logprobs_N = logprobs_N.clone().requires_grad_()
    return torch.autograd.grad(loss(logprobs_N).sum(), logprobs_N)[0]


# By hand: what each token's -log π is multiplied by


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("nll", [1, 1, 1]),
        ("wbc", [3, 3, 2]),
        ("r_gold", [3 * 0.5, 3 * 0.2, 2 * 0.1]),  # by the policy's own probability
        ("r_lol", [3, 3, 2 * 0.25]),  # by the whole response's ratio
        ("a_lol", [3, 3, 2 * 0.25]),
        ("a_lol_ref_free", [3, 3, 2]),
        ("a_lol_seq", [3 * 1.9, 3 * 0.5, 2 * 0.25]),  # by each token's ratio, 2 held at 1.9
    ],
)
def test_weights_by_hand(name: str, factors: list[float]) -> None:
    """They are constants: the gradient is the same numbers."""
    worth_N, rows_N = torch.tensor(WORTH), torch.tensor(ROWS)

    def loss(logprobs_N: Tensor) -> Tensor:
        return LOSSES[name](logprobs_N, logs(REF), worth_N, rows_N)

    expected_N = torch.tensor(factors, dtype=torch.float64)
    torch.testing.assert_close(loss(logs(PI)), expected_N * torch.tensor(NLL, dtype=torch.float64))
    torch.testing.assert_close(gradient(loss, logs(PI)), -expected_N)


def test_the_floor_of_gold() -> None:
    worth_N = torch.ones(3)
    assert (-gradient(lambda p: offline.r_gold(p, worth_N, floor=0.3), logs(PI))).tolist() == pytest.approx(
        [0.5, 0.3, 0.3]
    )


@pytest.mark.parametrize(
    ("ppo_clip", "whole", "single"),
    [
        (None, [1, 1, 0.25], RATIOS),
        (0.9, [1, 1, 0.25], [1.9, 0.5, 0.25]),
        (0.2, [1, 1, 0.8], [1.2, 0.8, 0.8]),
        (0.0, [1, 1, 1], [1, 1, 1]),
    ],
)
def test_clipping_by_hand(ppo_clip: float | None, whole: list[float], single: list[float]) -> None:
    ones_N, rows_N = torch.ones(3), torch.tensor(ROWS)
    for expected, loss in (
        (whole, lambda p: offline.r_lol(p, logs(REF), ones_N, rows_N, ppo_clip=ppo_clip)),
        (whole, lambda p: offline.a_lol(p, logs(REF), ones_N, rows_N, ppo_clip=ppo_clip)),
        (single, lambda p: offline.a_lol_seq(p, logs(REF), ones_N, ppo_clip=ppo_clip)),
    ):
        assert (-gradient(loss, logs(PI))).tolist() == pytest.approx(expected)


def test_a_response_out_of_bounds_keeps_its_gradient() -> None:
    """PPO's minimum would stop it: A > 0 and a ratio of 20."""
    loss_N = gradient(
        lambda p: offline.a_lol(p, logs([0.02]), torch.tensor([2.0]), torch.tensor([0])), logs([0.4])
    )
    assert loss_N.tolist() == pytest.approx([-2 * 1.9])


# Gradients of the KL forms


def test_a_lol_kl_is_the_reference_free_loss_with_advantages_less_by_beta() -> None:
    """-(A - β) ∇log π: with A = 3, β = 5 the response is pushed down, wherever the reference is."""
    advantages_N = torch.tensor([3.0, 3.0, 7.0])
    for ref_N in (logs(REF), logs([0.9, 0.9, 0.001])):
        got_N = gradient(lambda p, r=ref_N: offline.a_lol_kl(p, r, advantages_N, kl_beta=5.0), logs(PI))
        assert got_N.tolist() == pytest.approx([2.0, 2.0, -2.0])


def test_a_lol_kl_by_hand() -> None:
    # 3 ln 2 + .2 ln 2, 3 ln 5 - .2 ln 2, 2 ln 10 - .2 ln 4
    loss_N = LOSSES["a_lol_kl"](logs(PI), logs(REF), torch.tensor(WORTH), torch.tensor(ROWS))
    expected = [3.2 * math.log(2), 3 * math.log(5) - 0.2 * math.log(2), 2 * math.log(10) - 0.2 * math.log(4)]
    assert loss_N.tolist() == pytest.approx(expected)


def test_r_lol_with_a_kl_by_hand() -> None:
    """The source has no weights, and rewards below 0 count as they are; ours stands beside weights."""
    rewards_N, rows_N = torch.tensor([3.0, 3.0, -2.0]), torch.tensor(ROWS)
    source_N = offline.r_lol_kl(logs(PI), logs(REF), rewards_N, rows_N, kl_beta=0.2, form="log_ratio")
    ln2, ln5, ln10 = math.log(2), math.log(5), math.log(10)
    assert source_N.tolist() == pytest.approx([3.2 * ln2, 3 * ln5 - 0.2 * ln2, -2 * ln10 - 0.4 * ln2])
    # ratios 2, ½, ¼; weights 1, 1, ¼; ρ ln ρ - ρ + 1
    kl_N = [2 * ln2 - 1, -0.5 * ln2 + 0.5, -0.5 * ln2 + 0.75]
    ours_N = offline.r_lol_kl(logs(PI), logs(REF), rewards_N, rows_N, kl_beta=0.2)
    expected = [policy + 0.2 * kl for policy, kl in zip([3 * ln2, 3 * ln5, -0.5 * ln10], kl_N, strict=True)]
    assert ours_N.tolist() == pytest.approx(expected)
    one = (logs([0.4]), logs([0.1]), torch.tensor([2.0]), torch.tensor([0]))
    assert float(offline.r_lol_kl(*one, kl_beta=0.5, form="log_ratio")) == pytest.approx(2.526, abs=1e-3)
    assert float(offline.r_lol_kl(*one, kl_beta=0.5)) == pytest.approx(4.754, abs=1e-3)


def test_the_true_kl_pulls_towards_the_reference_from_both_sides() -> None:
    """A = 0 and β = 1: ρ log ρ at ρ = 2, ½, 1."""
    ref_N = logs([0.25, 0.4, 0.3])
    got_N = gradient(
        lambda p: offline.a_lol_kl(p, ref_N, torch.zeros(3), kl_beta=1.0, form="unbiased"),
        logs([0.5, 0.2, 0.3]),
    )
    assert got_N.tolist() == pytest.approx([2 * math.log(2), -math.log(2) / 2, 0.0], abs=1e-12)


actions = st.lists(st.floats(-3, 3), min_size=5, max_size=5).map(
    lambda drawn: torch.tensor(drawn, dtype=torch.float64)
)


@given(actions, actions, actions)
def test_under_responses_of_the_reference_the_weights_make_it_the_policys_own_gradient(
    now_A: Tensor, ref: Tensor, worth_A: Tensor
) -> None:
    """∇ E_π[R] and ∇ E_π[max(A, 0)], summed over every response of one token, however far π has gone."""
    now_A.requires_grad_()
    logprobs_A, ref_A, rows_A = now_A.log_softmax(-1), ref.log_softmax(-1), torch.arange(5)
    for losses_A, gain_A in (
        (offline.r_lol(logprobs_A, ref_A, worth_A, rows_A, ppo_clip=None), worth_A),
        (offline.a_lol(logprobs_A, ref_A, worth_A, rows_A, ppo_clip=None), worth_A.clamp(min=0)),
    ):
        surrogate = (ref_A.exp() * losses_A).sum()
        expected = -(logprobs_A.exp() * gain_A).sum()
        got, wanted = (torch.autograd.grad(of, now_A, retain_graph=True)[0] for of in (surrogate, expected))
        torch.testing.assert_close(got, wanted)


@given(actions, actions)
def test_the_true_kl_and_its_gradient_are_unbiased_under_tokens_of_the_reference(
    now_A: Tensor, ref: Tensor
) -> None:
    """Summed over every action of a softmax, against autograd of KL(π‖π_ref) by its definition."""
    now_A.requires_grad_()
    logprobs_A, ref_A = now_A.log_softmax(-1), ref.log_softmax(-1)
    estimates_A = offline.reference_kl(logprobs_A, ref_A)
    expectation = (ref_A.exp() * estimates_A).sum()
    exact = (logprobs_A.exp() * (logprobs_A - ref_A)).sum()
    torch.testing.assert_close(expectation, exact)
    assert bool((estimates_A >= -1e-12).all())
    got, expected = (torch.autograd.grad(of, now_A, retain_graph=True)[0] for of in (expectation, exact))
    torch.testing.assert_close(got, expected)


@given(actions, actions)
def test_the_sources_kl_has_no_force_towards_the_reference(now_A: Tensor, ref: Tensor) -> None:
    """Under tokens of π itself its expected gradient is 0, and on given ones it is β ∇log π."""
    now_A.requires_grad_()
    logprobs_A = now_A.log_softmax(-1)
    terms_A = offline.a_lol_kl(logprobs_A, ref.log_softmax(-1), torch.zeros(5), kl_beta=1.0)
    (got,) = torch.autograd.grad((logprobs_A.detach().exp() * terms_A).sum(), now_A)
    torch.testing.assert_close(got, torch.zeros_like(got), atol=1e-12, rtol=0)


# Advantages


@pytest.mark.parametrize("name", ["a_lol", "a_lol_ref_free", "a_lol_seq", "a_lol_kl", "a_lol_true_kl"])
def test_what_is_worse_than_expected_is_as_if_it_were_just_as_expected(name: str) -> None:
    rows_N = torch.tensor(ROWS)
    worse_N, equal_N = torch.tensor([-3.0, -3.0, 2.0]), torch.tensor([0.0, 0.0, 2.0])
    for value in (LOSSES[name], lambda p, *rest: gradient(lambda x: LOSSES[name](x, *rest), p)):
        torch.testing.assert_close(
            value(logs(PI), logs(REF), worse_N, rows_N), value(logs(PI), logs(REF), equal_N, rows_N)
        )


def test_unclamped_advantages_push_down_where_asked() -> None:
    advantages_N = torch.tensor([-3.0, -3.0, 2.0])
    got_N = gradient(lambda p: offline.a_lol_ref_free(p, advantages_N, negative_advantages=True), logs(PI))
    assert got_N.tolist() == [3.0, 3.0, -2.0]


def test_a_response_worth_nothing_counts_nothing_though_its_weight_overflows() -> None:
    logprobs_N, ref_N = torch.tensor([-1.0]), torch.tensor([-200.0])  # e¹⁹⁹ is no float32
    for advantage, expected in ((0.0, 0.0), (-1.0, 0.0), (1.0, math.inf)):
        loss_N = offline.a_lol(logprobs_N, ref_N, torch.tensor([advantage]), torch.tensor([0]), ppo_clip=None)
        assert loss_N.tolist() == [expected]


lengths = st.lists(st.integers(1, 6), min_size=2, max_size=7)


def drawn(lengths_B: list[int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(logprobs, ref, advantages, rows, lengths), a token; advantages of both signs."""
    generator = torch.Generator().manual_seed(seed)
    rows_N = torch.arange(len(lengths_B)).repeat_interleave(torch.tensor(lengths_B))
    lengths_N = torch.tensor(lengths_B)[rows_N]
    logprobs_N, ref_N = -torch.rand(2, len(rows_N), generator=generator, dtype=torch.float64)
    advantages_B = torch.randn(len(lengths_B), generator=generator, dtype=torch.float64)
    return logprobs_N, ref_N, advantages_B[rows_N], rows_N, lengths_N


@given(lengths)
def test_importance_weights_are_exactly_one_at_step_zero(lengths_B: list[int]) -> None:
    logprobs_N, _, worth_N, rows_N, _ = drawn(lengths_B)
    assert (offline.sequence_ratios(logprobs_N, logprobs_N.clone(), rows_N) == 1.0).all()
    assert (offline.token_ratios(logprobs_N, logprobs_N.clone()) == 1.0).all()
    free_N = offline.a_lol_ref_free(logprobs_N, worth_N)
    for name in ("a_lol", "a_lol_seq", "a_lol_kl", "a_lol_true_kl"):
        assert torch.equal(LOSSES[name](logprobs_N, logprobs_N.clone(), worth_N, rows_N), free_N)
    assert torch.equal(
        LOSSES["r_lol"](logprobs_N, logprobs_N, worth_N, rows_N), offline.wbc(logprobs_N, worth_N)
    )


@given(lengths, st.floats(0.1, 5))
def test_equal_advantages_at_step_zero_are_the_likelihood_scaled(
    lengths_B: list[int], advantage: float
) -> None:
    logprobs_N, _, _, rows_N, _ = drawn(lengths_B)
    same_N = torch.full_like(logprobs_N, advantage)
    for name in ("wbc", "r_lol", "a_lol", "a_lol_ref_free", "a_lol_seq"):
        torch.testing.assert_close(
            LOSSES[name](logprobs_N, logprobs_N, same_N, rows_N), advantage * offline.nll(logprobs_N)
        )


@given(lengths)
def test_a_response_of_one_token_has_one_ratio(lengths_B: list[int]) -> None:
    logprobs_N, ref_N, worth_N, _, _ = drawn([1] * sum(lengths_B))
    rows_N = torch.arange(len(logprobs_N))
    assert torch.equal(
        offline.a_lol(logprobs_N, ref_N, worth_N, rows_N), offline.a_lol_seq(logprobs_N, ref_N, worth_N)
    )


# Over a minibatch


def test_over_responses_by_hand() -> None:
    # (1 + 2 + 6) / 2 responses, and ((1 + 2) / 2 + 6) / 2
    losses_N, lengths_N = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([2, 2, 1])
    assert float(offline.over_responses(losses_N, lengths_N, num_rollouts=2)) == 4.5
    assert float(offline.over_responses(losses_N, lengths_N, num_rollouts=2, reduction="mean")) == 3.75


@pytest.mark.parametrize("name", LOSSES)
@given(lengths, st.integers(1, 6), st.sampled_from(["sum", "mean"]))
def test_splitting_a_minibatch_changes_neither_loss_nor_gradient(
    name: str, lengths_B: list[int], at: int, reduction: offline.Reduction
) -> None:
    tensors, num_rollouts = drawn(lengths_B), len(lengths_B)
    logprobs_N = tensors[0].requires_grad_()

    def share(of_N: Tensor) -> Tensor:
        p, ref, worth, rows, token_lengths = (tensor[of_N] for tensor in tensors)
        losses_N = LOSSES[name](p, ref, worth, rows - rows.min())
        return offline.over_responses(losses_N, token_lengths, num_rollouts=num_rollouts, reduction=reduction)

    rows_N, at = tensors[3], min(at, num_rollouts - 1)
    whole, parts = share(rows_N >= 0), share(rows_N < at) + share(rows_N >= at)
    torch.testing.assert_close(parts, whole)
    got, expected = (torch.autograd.grad(of, logprobs_N, retain_graph=True)[0] for of in (parts, whole))
    torch.testing.assert_close(got, expected)


# Which examples an epoch draws

ADVANTAGES = np.array([0.5, -0.1, 0.3, 0.0, 0.2])
GOOD = np.array([True, True, True, True, False])
STRATEGIES: list[SamplingStrategy] = ["good_priority", "good_random", "all_priority"]


def test_without_a_strategy_every_good_example_comes_once() -> None:
    epoch_rows = select_epoch(ADVANTAGES, None, seed=0, epoch=0, good_M=GOOD)
    assert sorted(epoch_rows.order_E) == [0, 1, 2, 3]
    assert (epoch_rows.num_examples, epoch_rows.num_kept, epoch_rows.share_dropped) == (4, 4, 0.0)


def test_good_random_is_every_good_example_that_is_better_than_expected() -> None:
    epoch_rows = select_epoch(ADVANTAGES, "good_random", seed=0, epoch=0, good_M=GOOD)
    assert sorted(epoch_rows.order_E) == [0, 2]
    assert (epoch_rows.num_examples, epoch_rows.num_kept, epoch_rows.share_dropped) == (4, 2, 0.5)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("good_priority", [5 / 8, 0, 3 / 8, 0, 0]), ("all_priority", [0.5, 0, 0.3, 0, 0.2])],
)
def test_priorities_are_how_often_an_example_is_drawn(
    strategy: SamplingStrategy, expected: list[float]
) -> None:
    repeats = 4000  # 8000 draws or more: three deviations are below .017
    tiled, good = np.tile(ADVANTAGES, repeats), np.tile(GOOD, repeats)
    epoch = select_epoch(tiled, strategy, seed=3, epoch=1, good_M=good)
    shares = np.bincount(epoch.order_E % 5, minlength=5) / len(epoch.order_E)
    assert shares.tolist() == pytest.approx(expected, abs=0.017)
    assert (shares[np.array(expected) == 0] == 0).all()
    kept = {"good_priority": 2, "all_priority": 3}[strategy]
    assert len(epoch.order_E) == epoch.num_kept == kept * repeats
    assert epoch.share_dropped == pytest.approx(1 - kept / {"good_priority": 4, "all_priority": 5}[strategy])


@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=30).filter(lambda drawn: max(drawn) > 0),
    st.sampled_from(STRATEGIES),
    st.integers(0, 9),
)
def test_nothing_without_worth_is_ever_drawn(
    priorities: list[float], strategy: SamplingStrategy, seed: int
) -> None:
    values_M = np.array(priorities)
    epoch_rows = select_epoch(values_M, strategy, seed=seed, epoch=2)
    assert (values_M[epoch_rows.order_E] > 0).all()
    assert len(epoch_rows.order_E) == (values_M > 0).sum()
    again = select_epoch(values_M, strategy, seed=seed, epoch=2)
    assert (epoch_rows.order_E == again.order_E).all()


@pytest.mark.parametrize("strategy", [None, *STRATEGIES])
def test_another_epoch_or_seed_has_another_order(strategy: SamplingStrategy | None) -> None:
    values_M = np.linspace(0.1, 1, 100)
    orders = [
        select_epoch(values_M, strategy, seed=seed, epoch=epoch).order_E.tolist()
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert orders[0] != orders[1] and orders[0] != orders[2] and orders[1] != orders[2]


def test_the_last_draw_is_never_beyond_the_last_example() -> None:
    """Three quarters of the smallest number above 0 are rounded up to itself."""
    tiniest = np.array([5e-324])
    assert tiniest[0] * 0.75 == tiniest[0]
    for seed in range(10):
        assert select_epoch(tiniest, "good_priority", seed=seed, epoch=0).order_E.tolist() == [0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_positive_advantage_is_told_with_counts(strategy: SamplingStrategy) -> None:
    with pytest.raises(LearnerError, match=rf"0 of 3 .*sampling_strategy={strategy}.* highest is -0.25"):
        select_epoch(np.array([-0.5, -0.25, -1.0]), strategy, seed=0, epoch=0)
    with pytest.raises(LearnerError, match="0 of 0 advantages are above 0"):
        require_positive(np.array([]), "advantages")


def test_only_rejected_responses_are_better_than_expected() -> None:
    values_M, good_M = np.array([-1.0, 2.0]), np.array([True, False])
    with pytest.raises(LearnerError, match="0 of 1 "):
        select_epoch(values_M, "good_priority", seed=0, epoch=0, good_M=good_M)
    assert select_epoch(values_M, "all_priority", seed=0, epoch=0, good_M=good_M).order_E.tolist() == [1]


@pytest.mark.parametrize("strategy", [None, *STRATEGIES])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_missing_reward_is_told_with_counts(strategy: SamplingStrategy | None, wrong: float) -> None:
    with pytest.raises(LearnerError, match=rf"2 of 4 .* {wrong}, of example 1;"):
        select_epoch(np.array([1.0, wrong, 2.0, wrong]), strategy, seed=0, epoch=0)
    require_finite(np.array([1.0]), "rewards")
