"""Mathematics of a trust region: conjugate gradients, and the Fisher matrix of a softmax times a vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], target_P: Tensor, max_steps: int, tolerance: float = 1e-10
) -> tuple[Tensor, Tensor]:
    """x with Ax ≈ b, from products with the positive definite A alone (Hestenes and Stiefel 1952).

    It begins at x = 0, so that no product is spent on a beginning and the same batch always gives the same
    x; sb3-contrib begins at noise of 1e-4, lest it divide by 0 when b is tiny: here that ends at x = 0.

    Args:
        product: v ↦ Av.
        target_P: b.
        tolerance: end when the residual's squared norm is below.

    Returns:
        (x, b - Ax).

    >>> A, b = torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([2.0, 2.0])
    >>> [part.tolist() for part in conjugate_gradients(lambda v: A @ v, b, 1)]  # one step down b itself
    [[0.6666666865348816, 0.6666666865348816], [0.6666666269302368, -0.6666667461395264]]
    """
    solution_P, residual_P, direction_P = torch.zeros_like(target_P), target_P.clone(), target_P.clone()
    squared = residual_P.dot(residual_P)
    for _ in range(max_steps):
        if squared < tolerance:
            break
        product_P = product(direction_P)
        length = squared / direction_P.dot(product_P)
        solution_P += length * direction_P
        residual_P -= length * product_P
        before, squared = squared, residual_P.dot(residual_P)
        direction_P = residual_P + squared / before * direction_P
    return solution_P, residual_P


def softmax_fisher_product(logits_NV: Tensor, tangent_NV: Tensor) -> Tensor:
    """Fu = p·(u - Σ pu), row by row: F = diag(p) - ppᵀ is the second derivative of the KL in the logits.

    Whichever way round the KL is taken, at equal distributions F is the same. A token outside the
    support has logit -inf, so probability 0, and takes no part.

    Example: p = (½, ½) and u = (1, 0) give (¼, -¼).
    """
    probs_NV = logits_NV.softmax(-1)
    mean_N1 = (probs_NV * tangent_NV).sum(-1, keepdim=True)
    return probs_NV.mul_(tangent_NV - mean_N1)
