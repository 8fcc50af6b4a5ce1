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
    """Solve Ax ≈ b by products with the positive definite A (Hestenes and Stiefel 1952).

    It starts at x = 0, which needs no product, makes x depend only on the batch, and ends at once for a tiny
    b. sb3-contrib starts at noise of 1e-4, to avoid a division by 0 if b is tiny.

    Args:
        product: v ↦ Av.
        target_P: b.
        tolerance: end when the residual's squared norm is below this.

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
    """Return Fu = p·(u - Σ pu) for each row; F = diag(p) - ppᵀ is the KL's second derivative in the logits.

    At equal distributions both directions of the KL have the same F. A token outside the support has logit
    -inf and probability 0, so it adds nothing.

    Example: p = (½, ½) and u = (1, 0) give (¼, -¼).
    """
    probs_NV = logits_NV.softmax(-1)
    mean_N1 = (probs_NV * tangent_NV).sum(-1, keepdim=True)
    return probs_NV.mul_(tangent_NV - mean_N1)
