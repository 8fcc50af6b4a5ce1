"""The clipped surrogate, the value loss and the explained variance, with numbers worked by hand."""

import math

import pytest
import torch

from learner.functional.ratios import clipped_surrogate, explained_variance, value_loss


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (2.0, 1.0, -1.2, 0.0),  # min(2, 1.2) = 1.2: gained enough, the gradient stops
        (0.5, 1.0, -0.5, -1.0),  # min(.5, .8) = .5: it lost, and may come back
        (2.0, -1.0, 2.0, 1.0),  # min(-2, -1.2) = -2: a bad token became likelier, and may come back
        (0.5, -1.0, 0.8, 0.0),  # min(-.5, -.8) = -.8: suppressed enough, the gradient stops
        (1.1, 3.0, -3.3, -3.0),  # within the range: the plain policy gradient
        (1.0, 0.0, 0.0, 0.0),
    ],
)
def test_clipped_surrogate_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    ratio_N = torch.tensor([ratio], requires_grad=True)
    got = clipped_surrogate(ratio_N, torch.tensor([advantage]), clip_range=0.2)
    got.sum().backward()
    assert got.item() == pytest.approx(loss)
    assert ratio_N.grad is not None
    assert float(ratio_N.grad) == pytest.approx(gradient)


def test_value_loss_by_hand() -> None:
    # (R - V)² without ½: (3 - 1)² = 4
    assert float(value_loss(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([3.0]), None)) == 4.0


@pytest.mark.parametrize(
    ("value", "loss", "gradient"),
    [
        (1.0, 6.25, 0.0),  # V is held at 0 + .5: (3 - .5)² = 6.25, and it learns no more
        (-1.0, 12.25, 0.0),  # held at -.5: (3 + .5)²; no maximum with the unclipped 16
        (0.25, 7.5625, -5.5),  # inside: (3 - .25)², gradient -2 (3 - .25)
    ],
)
def test_value_loss_clipped_by_hand(value: float, loss: float, gradient: float) -> None:
    values = torch.tensor([value], requires_grad=True)
    got = value_loss(values, torch.tensor([0.0]), torch.tensor([3.0]), clip_range=0.5)
    got.sum().backward()
    assert got.item() == loss
    assert values.grad is not None
    assert float(values.grad) == gradient


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([1.0, 2.0, 3.0, 4.0])  # variance 5/4
    assert explained_variance(returns.clone(), returns) == 1.0
    assert explained_variance(torch.full((4,), 9.0), returns) == 0.0
    # R - V = (1, 1, -1, -1): variance 1, so 1 - 1 / (5/4) = 0.2
    assert explained_variance(torch.tensor([0.0, 1.0, 4.0, 5.0]), returns) == pytest.approx(0.2)
    assert explained_variance(-returns, returns) == pytest.approx(-3.0)  # worse than a constant
    assert math.isnan(explained_variance(returns, torch.ones(4)))
