"""GAE and whitening: by hand, against the definition, and unmoved by padding."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from learner.functional.advantages import generalized_advantages, whiten

numbers = st.floats(-5, 5, width=32)
fractions = st.floats(0, 1, width=32)


@st.composite
def episodes(draw: st.DrawFn) -> tuple[list[list[float]], list[list[float]]]:
    """Rewards and values of one to four rollouts of one to eight tokens."""
    lengths = draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
    return tuple([[draw(numbers) for _ in range(n)] for n in lengths] for _ in range(2))  # type: ignore[return-value]


def pad(rows: list[list[float]], width: int, fill: float = 0.0) -> Tensor:
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


def by_definition(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """A_t = Σ_k (γλ)^k δ_{t+k}, summed anew for each t; the value after the end is 0."""
    after = [*values[1:], 0.0]
    deltas = [r + gamma * v_next - v for r, v, v_next in zip(rewards, values, after, strict=True)]
    return [sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(deltas))]


def test_advantages_by_hand() -> None:
    # γ = 1/2, λ = 1/2, rewards (0, 0, 1), values (1, 2, 3):
    #   δ_2 = 1 + 0   - 3 = -2       A_2 = -2
    #   δ_1 = 0 + 3/2 - 2 = -1/2     A_1 = -1/2 + 1/4 · -2 = -1
    #   δ_0 = 0 + 2/2 - 1 = 0        A_0 =  0   + 1/4 · -1 = -1/4
    # the second rollout has one token: A = 4 - 1 = 3
    rewards = torch.tensor([[0.0, 0.0, 1.0], [4.0, 0.0, 0.0]])
    values = torch.tensor([[1.0, 2.0, 3.0], [1.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    advantages, returns = generalized_advantages(rewards, values, mask, gamma=0.5, gae_lambda=0.5)
    assert advantages.tolist() == [[-0.25, -1.0, -2.0], [3.0, 0.0, 0.0]]
    assert returns.tolist() == [[0.75, 1.0, 1.0], [4.0, 0.0, 0.0]]


@given(episodes(), fractions, fractions)
def test_advantages_are_the_definition(
    episode: tuple[list[list[float]], list[list[float]]], gamma: float, lam: float
) -> None:
    rewards, values = episode
    width = max(map(len, rewards))
    mask = pad([[1.0] * len(row) for row in rewards], width)
    got, returns = generalized_advantages(
        pad(rewards, width), pad(values, width), mask, gamma=gamma, gae_lambda=lam
    )
    expected = [by_definition(r, v, gamma, lam) for r, v in zip(rewards, values, strict=True)]
    torch.testing.assert_close(got, pad(expected, width), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(returns, (got + pad(values, width)) * mask)


@given(episodes(), st.integers(1, 5), numbers)
def test_padding_and_what_lies_in_it_change_nothing(
    episode: tuple[list[list[float]], list[list[float]]], more: int, rubbish: float
) -> None:
    rewards, values = episode
    width = max(map(len, rewards))
    mask = pad([[1.0] * len(row) for row in rewards], width)
    clean = generalized_advantages(pad(rewards, width), pad(values, width), mask, gamma=0.9, gae_lambda=0.8)
    dirty = generalized_advantages(
        pad(rewards, width + more, rubbish),
        pad(values, width + more, rubbish),
        pad([[1.0] * len(row) for row in rewards], width + more),
        gamma=0.9,
        gae_lambda=0.8,
    )
    for few, many in zip(clean, dirty, strict=True):
        assert torch.equal(few, many[:, :width])
        assert not many[:, width:].any()


@given(episodes())
def test_with_lambda_one_an_advantage_is_the_discounted_return_minus_the_value(
    episode: tuple[list[list[float]], list[list[float]]],
) -> None:
    rewards, values = episode
    for row, value in zip(rewards, values, strict=True):
        discounted = [sum(0.9**k * r for k, r in enumerate(row[t:])) for t in range(len(row))]
        advantages, returns = generalized_advantages(
            torch.tensor([row]), torch.tensor([value]), torch.ones(1, len(row)), gamma=0.9, gae_lambda=1.0
        )
        torch.testing.assert_close(returns[0], torch.tensor(discounted), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            advantages[0], torch.tensor(discounted) - torch.tensor(value), atol=1e-4, rtol=1e-4
        )


def test_whitening_by_hand() -> None:
    # (1, 2, 3): mean 2, unbiased variance (1 + 0 + 1) / 2 = 1
    torch.testing.assert_close(whiten(torch.tensor([1.0, 2.0, 3.0])), torch.tensor([-1.0, 0.0, 1.0]))


@given(st.lists(numbers, min_size=2, max_size=30), st.floats(0.5, 4, width=32), numbers)
def test_whitening_forgets_scale_and_offset(values: list[float], scale: float, offset: float) -> None:
    x = torch.tensor(values)
    if float(x.std()) < 1e-2:
        return
    torch.testing.assert_close(whiten(x * scale + offset), whiten(x), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3, 1e-3, 1e4])
@pytest.mark.parametrize("count", [1, 2, 7, 100, 4099])
def test_equal_values_whiten_to_exactly_zero(value: float, count: int) -> None:
    # In float32 the mean of a hundred 0.1 is not 0.1, and the rounding error, divided by its own
    # standard deviation, would become an advantage of order one.
    assert not whiten(torch.full((count,), value)).any()


def test_whitening_keeps_the_type_and_is_finite() -> None:
    for values in ([3.0], [0.0, 0.0], [math.pi] * 3, [1e30, -1e30]):
        whitened = whiten(torch.tensor(values))
        assert whitened.dtype == torch.float32
        assert torch.isfinite(whitened).all()
