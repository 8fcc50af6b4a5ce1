"""The head's own backward pass: the numbers and gradients of autograd, without an array of all logits."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from learner.functional import linear_logprobs as fused
from learner.functional.linear_logprobs import LinearHead, _Kept, linear_logprobs
from learner.functional.logprobs import WHOLE, Restriction, token_logprobs
from learner.functional.support import pack_bits

N, H, V = 13, 6, 37
UNLIMITED, SMALL = 2**20, 40  # SMALL: tiles of 5 rows and 8 words


def restricted(temperature: float, targets_N: Tensor) -> Restriction:
    """Some 40 % of the words of each row and its target; the first row has its target alone."""
    allowed_NV = (torch.rand(N, V) < 0.4).scatter(-1, targets_N[:, None], True)
    allowed_NV[0] = torch.arange(V) == targets_N[0]
    return Restriction(temperature, pack_bits(allowed_NV))


def case(seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    hidden_NH = torch.randn(N, H, dtype=dtype, requires_grad=True)
    weight_VH = torch.randn(V, H, dtype=dtype, requires_grad=True)
    bias_V = torch.randn(V, dtype=dtype, requires_grad=True)
    return hidden_NH, weight_VH, bias_V, torch.randint(0, V, (N,))


@pytest.mark.parametrize("budget", [UNLIMITED, SMALL])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_gradients_are_autograds(budget: int, cut: bool, with_entropy: bool) -> None:
    hidden_NH, weight_VH, bias_V, targets_N = case(0, torch.float64)
    restriction = restricted(0.7, targets_N) if cut else Restriction(0.7)

    def function(hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor) -> tuple[Tensor, ...]:
        head = LinearHead(weight_VH, bias_V, scale=1.3)
        logprobs_N, entropies_N = linear_logprobs(
            hidden_NH,
            targets_N,
            head,
            logits_budget=budget,
            with_entropy=with_entropy,
            restriction=restriction,
        )
        return (logprobs_N,) if entropies_N is None else (logprobs_N, entropies_N)

    # a second backward pass computes again what the first one found kept
    assert torch.autograd.gradcheck(function, (hidden_NH, weight_VH, bias_V), nondet_tol=1e-12)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**20),
    budget=st.sampled_from([UNLIMITED, 333, SMALL, 1]),
    temperature=st.floats(0.3, 3.0),
    cut=st.booleans(),
    biased=st.booleans(),
    with_entropy=st.booleans(),
)
def test_numbers_and_gradients_are_those_of_all_logits_at_once(
    seed: int, budget: int, temperature: float, cut: bool, biased: bool, with_entropy: bool
) -> None:
    results = []
    for is_fused in (True, False):
        hidden_NH, weight_VH, bias_V, targets_N = case(seed)
        restriction = restricted(temperature, targets_N) if cut else Restriction(temperature)
        if is_fused:
            head = LinearHead(weight_VH, bias_V if biased else None, scale=0.5)
            found = linear_logprobs(
                hidden_NH,
                targets_N,
                head,
                logits_budget=budget,
                with_entropy=with_entropy,
                restriction=restriction,
            )
        else:
            found = token_logprobs(
                hidden_NH,
                targets_N,
                lambda x: nn.functional.linear(x * 0.5, weight_VH, bias_V if biased else None),  # noqa: B023
                vocab_size=V,
                logits_budget=UNLIMITED,
                with_entropy=with_entropy,
                restriction=restriction,
            )
        kept = [each for each in found if each is not None]
        sum((each * torch.linspace(-1, 2, N)).sum() for each in kept).backward()  # type: ignore[union-attr]
        leaves = (hidden_NH, weight_VH, *([bias_V] if biased else []))
        results.append([each.detach() for each in kept] + [leaf.grad for leaf in leaves])
    torch.testing.assert_close(results[0], results[1], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("cut", [False, True])
def test_log_probabilities_are_the_same_with_and_without_entropies(cut: bool) -> None:
    """Equal weights have a KL of exactly 0, though only one side's entropies are asked for."""
    hidden_NH, weight_VH, bias_V, targets_N = case(3)
    restriction = restricted(1.0, targets_N) if cut else WHOLE
    with_entropy, without = (
        linear_logprobs(
            hidden_NH,
            targets_N,
            LinearHead(weight_VH, bias_V),
            logits_budget=SMALL,
            with_entropy=each,
            restriction=restriction,
        )[0]
        for each in (True, False)
    )
    assert torch.equal(with_entropy, without)


def test_with_entropies_no_row_of_logits_is_kept_for_the_backward_pass() -> None:
    saved: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tuple(tensor.shape))
        return tensor

    hidden_NH, weight_VH, bias_V, targets_N = case(0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        linear_logprobs(
            hidden_NH,
            targets_N,
            LinearHead(weight_VH, bias_V),
            logits_budget=UNLIMITED,
            with_entropy=True,
        )
    assert (V, H) in saved
    assert (N, V) not in saved


class Products(TorchDispatchMode):
    """Counter of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func) in ("aten.mm.default", "aten.addmm_.default")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("budget", "with_entropy", "expected"),
    [
        (SMALL, False, 15 + 1 * 2 + 14 * 3),  # 3 chunks of rows, 5 tiles each: one tile fits
        (UNLIMITED, False, 1 + 2),
        (UNLIMITED, True, 1 + 3),  # its gradient needs more than the probabilities
    ],
)
def test_tiles_within_the_budget_are_not_computed_again(
    budget: int, with_entropy: bool, expected: int
) -> None:
    hidden_NH, weight_VH, bias_V, targets_N = case(0)
    head = LinearHead(weight_VH, bias_V)
    with Products() as products:
        found = linear_logprobs(hidden_NH, targets_N, head, logits_budget=budget, with_entropy=with_entropy)
        sum(each.sum() for each in found if each is not None).backward()  # type: ignore[union-attr]
    assert products.count == expected


@pytest.mark.parametrize(("budget", "expected"), [(UNLIMITED, 1), (2 * SMALL, 1), (SMALL - 1, 2), (1, 0)])
def test_tiles_wait_within_the_budget_and_go_one_by_one(budget: int, expected: int) -> None:
    """With 39 numbers a tile has 4 rows and 8 words; the last row's last 5 words fit beside the first."""
    hidden_NH, weight_VH, bias_V, targets_N = case(0)
    head = LinearHead(weight_VH, bias_V)
    logprobs_N, _ = linear_logprobs(hidden_NH, targets_N, head, logits_budget=budget, with_entropy=False)
    kept = logprobs_N.grad_fn.kept  # type: ignore[union-attr]
    assert len(kept) == expected
    logprobs_N.sum().backward(retain_graph=True)
    assert len(kept) == 0
    once = hidden_NH.grad.clone()  # type: ignore[union-attr]
    logprobs_N.sum().backward()  # all is computed again
    torch.testing.assert_close(hidden_NH.grad, 2 * once)


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("trains", [False, True])
def test_nothing_waits_without_gradients_with_entropies_or_with_restrictions(
    monkeypatch: pytest.MonkeyPatch, trains: bool, cut: bool, with_entropy: bool
) -> None:
    made: list[_Kept] = []
    monkeypatch.setattr(fused, "_Kept", lambda budget: made.append(_Kept(budget)) or made[-1])
    hidden_NH, weight_VH, bias_V, targets_N = case(0)
    with torch.set_grad_enabled(trains):
        linear_logprobs(
            hidden_NH,
            targets_N,
            LinearHead(weight_VH, bias_V),
            logits_budget=UNLIMITED,
            with_entropy=with_entropy,
            restriction=restricted(1.0, targets_N) if cut else WHOLE,
        )
    assert len(made[0]) == (trains and not cut and not with_entropy)


def test_a_weight_that_is_frozen_gets_no_gradient_and_lets_the_states_have_theirs() -> None:
    hidden_NH, weight_VH, _, targets_N = case(1)
    head = LinearHead(weight_VH.requires_grad_(False))
    linear_logprobs(hidden_NH, targets_N, head, logits_budget=SMALL, with_entropy=False)[0].sum().backward()
    assert hidden_NH.grad is not None
    assert weight_VH.grad is None


def test_no_token_at_all_gives_nothing() -> None:
    hidden_NH, weight_VH, _, targets_N = case(1)
    logprobs_N, entropies_N = linear_logprobs(
        hidden_NH[:0], targets_N[:0], LinearHead(weight_VH), logits_budget=SMALL, with_entropy=True
    )
    assert logprobs_N.shape == (0,)
    assert entropies_N is not None and entropies_N.shape == (0,)


def test_under_bfloat16_the_weights_gradient_is_summed_in_float32() -> None:
    """Sum 4,096 rows in 256 chunks; a sum in bfloat16 would be ten times further off."""
    torch.manual_seed(0)
    hidden_NH, targets_N = torch.randn(4096, 16), torch.randint(0, 24, (4096,))
    gradients = {}
    for in_bfloat16 in (False, True):
        weight_VH = (0.1 * torch.randn(24, 16, generator=torch.Generator().manual_seed(1))).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=in_bfloat16):
            logprobs_N, _ = linear_logprobs(
                hidden_NH, targets_N, LinearHead(weight_VH), logits_budget=16 * 24, with_entropy=False
            )
        assert logprobs_N.dtype == torch.float32
        logprobs_N.sum().backward()
        assert weight_VH.grad is not None and weight_VH.grad.dtype == torch.float32
        gradients[in_bfloat16] = weight_VH.grad
    error = (gradients[True] - gradients[False]).norm() / gradients[False].norm()
    assert error < 0.004


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_no_tile_waits_for_a_gpu(cut: bool, with_entropy: bool) -> None:
    """Fake tensors have shapes and no numbers: what is to be read back from a GPU raises an error."""
    with FakeTensorMode():
        hidden_NH, weight_VH, bias_V, targets_N = case(0)
        restriction = Restriction(0.7, torch.zeros(N, -(-V // 8), dtype=torch.uint8)) if cut else WHOLE
        logprobs_N, entropies_N = linear_logprobs(
            hidden_NH,
            targets_N,
            LinearHead(weight_VH, bias_V),
            logits_budget=SMALL,
            with_entropy=with_entropy,
            restriction=restriction,
        )
        loss = logprobs_N.sum() if entropies_N is None else logprobs_N.sum() + entropies_N.sum()
        loss.backward()
    assert weight_VH.grad is not None and weight_VH.grad.shape == (V, H)
