"""Log-probabilities, entropies and KLs of a distribution that was cut: what is outside pulls nothing."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from learner.functional.distribution_kl import distribution_kl
from learner.functional.logprobs import WHOLE, Restriction, token_logprobs
from learner.functional.support import pack_bits

N, H, V = 11, 6, 19
UNLIMITED, TWO_ROWS = 2**20, 2 * V + 1
everywhere = pytest.mark.parametrize("budget", [UNLIMITED, TWO_ROWS, 1])


def identity(hidden_NH: Tensor) -> Tensor:
    """A head under which the hidden states are the logits."""
    return hidden_NH


def cut(*rows: list[int], vocab_size: int, temperature: float = 1.0) -> Restriction:
    """The tokens of each row that are allowed."""
    allowed_NV = torch.zeros(len(rows), vocab_size, dtype=torch.bool)
    for row, tokens in enumerate(rows):
        allowed_NV[row, tokens] = True
    return Restriction(temperature, pack_bits(allowed_NV))


def random_case() -> tuple[Tensor, Tensor, nn.Linear, Tensor, Restriction]:
    """Hidden states, drawn tokens, a head, and sets that hold them; the first holds nothing else."""
    torch.manual_seed(4)
    hidden_NH = torch.randn(N, H, requires_grad=True)
    targets_N = torch.randint(0, V, (N,))
    allowed_NV = (torch.rand(N, V) < 0.4).scatter(-1, targets_N[:, None], True)
    allowed_NV[0] = torch.arange(V) == targets_N[0]
    return hidden_NH, targets_N, nn.Linear(H, V), allowed_NV, Restriction(0.7, pack_bits(allowed_NV))


def test_by_hand() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    restriction = cut([0, 2], vocab_size=4)
    logprobs, entropies = token_logprobs(
        logits,
        torch.tensor([2]),
        identity,
        vocab_size=4,
        logits_budget=UNLIMITED,
        with_entropy=True,
        restriction=restriction,
    )
    # 0.4 and 0.2 of 0.6: 2/3 and 1/3
    assert float(logprobs[0]) == pytest.approx(math.log(1 / 3))
    assert entropies is not None
    assert float(entropies[0]) == pytest.approx(math.log(3) - 2 / 3 * math.log(2))


def test_a_temperature_by_hand() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    logprobs, _ = token_logprobs(
        logits,
        torch.tensor([2]),
        identity,
        vocab_size=4,
        logits_budget=UNLIMITED,
        with_entropy=False,
        restriction=cut([0, 2], vocab_size=4, temperature=0.5),
    )
    assert float(logprobs[0]) == pytest.approx(math.log(4 / 20))  # the odds squared: 16 and 4


@everywhere
@pytest.mark.parametrize("with_entropy", [False, True])
def test_in_chunks_or_not_they_are_torchs_own_categorical(budget: int, with_entropy: bool) -> None:
    hidden_NH, targets_N, head, allowed_NV, restriction = random_case()
    logprobs_N, entropies_N = token_logprobs(
        hidden_NH,
        targets_N,
        head,
        vocab_size=V,
        logits_budget=budget,
        with_entropy=with_entropy,
        restriction=restriction,
    )
    probabilities_NV = (head(hidden_NH) / 0.7).softmax(-1) * allowed_NV
    plain = torch.distributions.Categorical(probabilities_NV)
    torch.testing.assert_close(logprobs_N, plain.log_prob(targets_N), atol=1e-5, rtol=1e-5)
    assert float(logprobs_N[0]) == 0.0  # of one token alone it is certain
    assert (entropies_N is not None) == with_entropy
    if entropies_N is not None:
        torch.testing.assert_close(entropies_N, plain.entropy(), atol=1e-4, rtol=1e-4)
        assert float(entropies_N[0]) == 0.0


@everywhere
@pytest.mark.parametrize("with_entropy", [False, True])
def test_a_token_outside_has_no_gradient_and_nothing_is_nan(budget: int, with_entropy: bool) -> None:
    _, targets_N, _, allowed_NV, restriction = random_case()
    logits_NV = torch.randn(N, V, requires_grad=True)
    logprobs_N, entropies_N = token_logprobs(
        logits_NV,
        targets_N,
        identity,
        vocab_size=V,
        logits_budget=budget,
        with_entropy=with_entropy,
        restriction=restriction,
    )
    weights_N = torch.linspace(-1, 2, N)
    loss = (weights_N * logprobs_N).sum()
    loss = loss + (weights_N.flip(0) * entropies_N).sum() if entropies_N is not None else loss
    loss.backward()
    gradient_NV = logits_NV.grad
    assert gradient_NV is not None and bool(gradient_NV.isfinite().all())
    assert not gradient_NV[~allowed_NV].any()
    assert bool(gradient_NV[1:][allowed_NV[1:]].any())
    torch.testing.assert_close(gradient_NV.sum(-1), torch.zeros(N), atol=1e-5, rtol=0)  # a softmax's are
    assert not gradient_NV[0].any()  # nothing to choose, nothing to learn


@given(st.integers(0, 2**32 - 1), st.floats(0.2, 5.0), st.floats(0.0, 60.0))
def test_all_probabilities_of_a_set_sum_to_one_and_those_outside_are_zero(
    seed: int, temperature: float, sharpness: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits_NV = sharpness * torch.randn(1, V, generator=generator)
    allowed_NV = torch.rand(1, V, generator=generator) < 0.5
    allowed_NV[0, seed % V] = True
    p_NV = Restriction(temperature, pack_bits(allowed_NV))(logits_NV).softmax(-1)
    assert float(p_NV.sum()) == pytest.approx(1, abs=1e-5)
    assert not p_NV[~allowed_NV].any()


def test_the_whole_softmax_is_left_as_it_is() -> None:
    logits_NV = torch.randn(3, 5)
    assert WHOLE(logits_NV) is logits_NV
    assert torch.equal(Restriction(2.0)(logits_NV), logits_NV / 2)


def test_rows_keep_their_own_sets() -> None:
    restriction = cut([0], [1, 2], [3], vocab_size=4)
    torch.testing.assert_close(
        restriction.rows(1, 3)(torch.zeros(2, 4)).softmax(-1),
        torch.tensor([[0.0, 0.5, 0.5, 0.0], [0.0, 0.0, 0.0, 1.0]]),
    )


def kl(logits_NV: Tensor, other_NV: Tensor, restriction: Restriction, **options: Any) -> Tensor:
    options = {"logits_budget": UNLIMITED} | options
    return distribution_kl(
        logits_NV,
        identity,
        other_NV,
        identity,
        vocab_size=logits_NV.shape[-1],
        restriction=restriction,
        **options,
    )


def test_a_kl_of_the_set_by_hand() -> None:
    # of tokens 0 and 1: (½, ½) and (¾, ¼); token 2 differs wildly and does not count
    one, other = torch.tensor([[0.3, 0.3, 0.4]]).log(), torch.tensor([[0.03, 0.01, 0.96]]).log()
    restriction = cut([0, 1], vocab_size=3)
    assert float(kl(one, other, restriction)) == pytest.approx(0.5 * math.log(4 / 3))  # ½ ln ⅔ + ½ ln 2
    forward = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert float(kl(one, other, restriction, forward=True)) == pytest.approx(forward)


@everywhere
@pytest.mark.parametrize("forward", [False, True])
def test_of_equal_policies_the_kl_is_zero_and_so_is_its_gradient(budget: int, forward: bool) -> None:
    *_, restriction = random_case()
    logits_NV = torch.randn(N, V, requires_grad=True)
    found_N = kl(logits_NV, logits_NV.detach(), restriction, forward=forward, logits_budget=budget)
    assert found_N.tolist() == [0.0] * N
    found_N.sum().backward()
    assert logits_NV.grad is not None
    torch.testing.assert_close(logits_NV.grad, torch.zeros(N, V), atol=1e-6, rtol=0)


@everywhere
@pytest.mark.parametrize("forward", [False, True])
def test_a_kls_gradient_is_finite_and_zero_outside(budget: int, forward: bool) -> None:
    *_, allowed_NV, restriction = random_case()
    logits_NV, other_NV = torch.randn(N, V, requires_grad=True), 3 * torch.randn(N, V)
    found_N = kl(logits_NV, other_NV, restriction, forward=forward, logits_budget=budget)
    assert bool((found_N[1:] > 0).all()) and float(found_N[0]) == 0.0
    found_N.sum().backward()
    assert logits_NV.grad is not None and bool(logits_NV.grad.isfinite().all())
    assert not logits_NV.grad[~allowed_NV].any() and bool(logits_NV.grad[allowed_NV].any())
    plain = [
        torch.distributions.kl_divergence(*(pair[::-1] if forward else pair))
        for row in range(N)
        for pair in [
            [
                torch.distributions.Categorical(logits=x[row, allowed_NV[row]] / 0.7)
                for x in (logits_NV, other_NV)
            ]
        ]
    ]
    torch.testing.assert_close(found_N, torch.stack(plain), atol=1e-5, rtol=1e-4)
