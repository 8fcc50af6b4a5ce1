"""Conjugate gradients against a direct solution; the softmax's Fisher matrix against the KL's derivatives."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from learner.functional.distribution_kl import categorical_kl
from learner.functional.trust_region import conjugate_gradients, softmax_fisher_product


def positive_definite(size: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, dtype=torch.float64, generator=generator)
    return root @ root.T + torch.eye(size, dtype=torch.float64), root[0]


@given(size=st.integers(1, 12), seed=st.integers(0, 1000))
def test_as_many_steps_as_dimensions_solve_it(size: int, seed: int) -> None:
    matrix, target_P = positive_definite(size, seed)
    solution_P, residual_P = conjugate_gradients(lambda v: matrix @ v, target_P, 2 * size, 1e-20)
    torch.testing.assert_close(solution_P, torch.linalg.solve(matrix, target_P), atol=1e-8, rtol=1e-8)
    assert float(residual_P.norm()) < 1e-8


@given(steps=st.integers(1, 6), seed=st.integers(0, 1000))
def test_the_residual_is_what_is_missing_and_every_step_comes_nearer(steps: int, seed: int) -> None:
    matrix, target_P = positive_definite(9, seed)
    exact_P = torch.linalg.solve(matrix, target_P)

    def distance(max_steps: int) -> Tensor:
        solution_P, residual_P = conjugate_gradients(lambda v: matrix @ v, target_P, max_steps)
        torch.testing.assert_close(residual_P, target_P - matrix @ solution_P)
        # xᵀAx = x(b - r): the curvature along x costs no further product
        torch.testing.assert_close(solution_P @ matrix @ solution_P, solution_P @ (target_P - residual_P))
        return (solution_P - exact_P) @ matrix @ (solution_P - exact_P)

    assert distance(steps) < distance(steps - 1)


def test_no_product_is_spent_on_a_gradient_of_zero_or_past_the_tolerance() -> None:
    products = 0

    def product(vector_P: Tensor) -> Tensor:
        nonlocal products
        products += 1
        return 2 * vector_P

    solution_P, residual_P = conjugate_gradients(product, torch.zeros(3), 15)
    assert products == 0 and not solution_P.any() and not residual_P.any()
    solution_P, _ = conjugate_gradients(product, torch.tensor([4.0, 0.0, 2.0]), 15)
    assert products == 1 and solution_P.tolist() == [2.0, 0.0, 1.0]  # a multiple of 1 is solved in a step


def test_a_softmax_of_two() -> None:
    # p = (½, ½): F = [[¼, -¼], [-¼, ¼]]
    product_NV = softmax_fisher_product(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    assert product_NV.tolist() == [[0.25, -0.25]]


@given(seed=st.integers(0, 1000))
def test_it_is_the_second_derivative_of_the_kl_in_either_direction(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits_V, tangent_V = torch.randn(2, 7, dtype=torch.float64, generator=generator)
    old_NV = logits_V.log_softmax(-1)[None]
    for new_first in (True, False):

        def kl(moved_V: Tensor, new_first: bool = new_first) -> Tensor:
            new_NV = moved_V.log_softmax(-1)[None]
            return categorical_kl(*((new_NV, old_NV) if new_first else (old_NV, new_NV))).sum()

        hessian_VV = torch.autograd.functional.hessian(kl, logits_V)
        product_NV = softmax_fisher_product(logits_V[None], tangent_V[None])
        torch.testing.assert_close(product_NV[0], hessian_VV @ tangent_V)


def test_a_token_outside_the_support_takes_no_part() -> None:
    logits_NV = torch.tensor([[0.3, -torch.inf, -0.4, 1.0], [-torch.inf, 0.3, -0.4, 1.0]])
    tangent_NV = torch.tensor([[1.0, 0.0, 2.0, -1.0], [0.0, 1.0, 2.0, -1.0]])
    product_NV = softmax_fisher_product(logits_NV, tangent_NV)
    alone_V = softmax_fisher_product(torch.tensor([[0.3, -0.4, 1.0]]), torch.tensor([[1.0, 2.0, -1.0]]))[0]
    assert product_NV[0, 1] == 0 and product_NV[1, 0] == 0
    torch.testing.assert_close(product_NV[0, [0, 2, 3]], alone_V)
    torch.testing.assert_close(product_NV[1, 1:], alone_V)
