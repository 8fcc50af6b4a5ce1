"""The two estimators of the KL divergence, and the two controllers of its coefficient."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.functional.kl import k1, k3
from learner.optimization.kl_control import KLSettings, next_coefficient

ZIEGLER = KLSettings(controller="ziegler", coefficient=0.15, target=6.0, horizon=10000)


def test_estimators_by_hand() -> None:
    # π(a) = 1/2 and ρ(a) = 1/4: k1 = ln 2; k3 with r = 1/2 is 1/2 - 1 + ln 2
    half, quarter = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    assert float(k1(half, quarter)) == pytest.approx(math.log(2))
    assert float(k1(quarter, half)) == pytest.approx(-math.log(2))
    assert float(k3(half, quarter)) == pytest.approx(math.log(2) - 0.5)
    # the other way round r = 2: 2 - 1 - ln 2
    assert float(k3(quarter, half)) == pytest.approx(1 - math.log(2))


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6))
def test_both_estimators_have_the_divergence_as_their_mean_under_the_first_policy(
    logits: list[float],
) -> None:
    log_pi = torch.tensor(logits, dtype=torch.float64).log_softmax(-1)
    log_rho = log_pi.flip(0)
    divergence = float((log_pi.exp() * (log_pi - log_rho)).sum())
    for estimator in (k1, k3):
        assert float((log_pi.exp() * estimator(log_pi, log_rho)).sum()) == pytest.approx(divergence, abs=1e-9)


@given(st.floats(-20, 0, width=32), st.floats(-20, 0, width=32))
def test_k3_is_never_negative_and_zero_for_equal_policies(one: float, other: float) -> None:
    a, b = torch.tensor([one]), torch.tensor([other])
    assert float(k3(a, b)) >= -1e-7 * abs(one - other)  # the rounding of float32
    assert float(k3(a, a)) == 0


@pytest.mark.parametrize("drift", [1e-2, 1e-3, 1e-4, -1e-4])
def test_k3_of_a_small_drift_is_half_its_square_and_not_rounding(drift: float) -> None:
    assert float(k3(torch.zeros(1), torch.tensor([drift]))) == pytest.approx(drift**2 / 2, rel=1e-2)


@pytest.mark.parametrize(
    ("kl", "coefficient"),
    [
        (0.5, 0.1),  # on target
        (0.55, 0.101),  # 10 % above: β · (1 + .1 · .1)
        (0.45, 0.099),
        (5.0, 0.102),  # the error is capped at 20 %: at most 2 % a batch
        (-3.0, 0.098),  # a sampled KL may be negative
    ],
)
def test_rl4lms_controller_by_hand(kl: float, coefficient: float) -> None:
    settings = KLSettings(coefficient=0.1, target=0.5)
    assert next_coefficient(settings, 0.1, kl, 999.0, 64) == pytest.approx(coefficient)


def test_rl4lms_controller_reaches_seven_fold_in_a_hundred_batches_whatever_their_size() -> None:
    # 1.02^100 = 7.24 and .98^100 = .133
    settings = KLSettings(target=0.5)
    up = down = 1.0
    for size in range(1, 101):
        up = next_coefficient(settings, up, 100.0, 0.0, size)
        down = next_coefficient(settings, down, -100.0, 0.0, size)
    assert (up, down) == (pytest.approx(7.2446, abs=1e-3), pytest.approx(0.1326, abs=1e-4))


@pytest.mark.parametrize(
    ("kl", "coefficient"),
    [
        (6.0, 0.15),
        (6.6, 0.150768),  # .15 · (1 + .1 · 512 / 10000)
        (30.0, 0.151536),  # capped at .2: .15 · (1 + .2 · 512 / 10000)
        (0.0, 0.148464),
    ],
)
def test_ziegler_controller_with_the_published_batch_and_horizon(kl: float, coefficient: float) -> None:
    assert next_coefficient(ZIEGLER, 0.15, 999.0, kl, 512) == pytest.approx(coefficient)


def test_without_a_target_the_coefficient_stays() -> None:
    for controller in ("rl4lms", "ziegler"):
        assert next_coefficient(KLSettings(controller=controller), 0.3, 50.0, 50.0, 64) == 0.3  # type: ignore[arg-type]
