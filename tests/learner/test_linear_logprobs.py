"""The head's own backward pass: the numbers and gradients of autograd, without an array of all logits."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from learner.functional import head_tiles
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


@contextlib.contextmanager
def tiles_by_words(forced: bool) -> Iterator[None]:
    """Lay a CPU's tiles as a GPU's lie, and let them be as narrow as these vocabularies need."""
    with pytest.MonkeyPatch.context() as patch:
        if forced:
            patch.setattr(head_tiles, "WORDS_FIRST", ("cpu",))
            patch.setattr(head_tiles, "LEAST_WORDS", 8)
            patch.setattr(head_tiles, "ALIGNED", 8)
        yield


def case(seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    hidden_NH = torch.randn(N, H, dtype=dtype, requires_grad=True)
    weight_VH = torch.randn(V, H, dtype=dtype, requires_grad=True)
    bias_V = torch.randn(V, dtype=dtype, requires_grad=True)
    return hidden_NH, weight_VH, bias_V, torch.randint(0, V, (N,))


@pytest.mark.parametrize(("budget", "by_words"), [(UNLIMITED, False), (SMALL, False), (SMALL, True)])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_gradients_are_autograds(budget: int, cut: bool, with_entropy: bool, by_words: bool) -> None:
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
    with tiles_by_words(by_words):
        assert torch.autograd.gradcheck(function, (hidden_NH, weight_VH, bias_V), nondet_tol=1e-12)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**20),
    budget=st.sampled_from([UNLIMITED, 333, SMALL, 1]),
    temperature=st.floats(0.3, 3.0),
    cut=st.booleans(),
    biased=st.booleans(),
    with_entropy=st.booleans(),
    by_words=st.booleans(),
)
def test_numbers_and_gradients_are_those_of_all_logits_at_once(
    seed: int, budget: int, temperature: float, cut: bool, biased: bool, with_entropy: bool, by_words: bool
) -> None:
    results = []
    for is_fused in (True, False):
        hidden_NH, weight_VH, bias_V, targets_N = case(seed)
        restriction = restricted(temperature, targets_N) if cut else Restriction(temperature)
        if is_fused:
            head = LinearHead(weight_VH, bias_V if biased else None, scale=0.5)
            with tiles_by_words(by_words):
                results_N = linear_logprobs(
                    hidden_NH,
                    targets_N,
                    head,
                    logits_budget=budget,
                    with_entropy=with_entropy,
                    restriction=restriction,
                )
        else:
            results_N = token_logprobs(
                hidden_NH,
                targets_N,
                lambda x: nn.functional.linear(x * 0.5, weight_VH, bias_V if biased else None),  # noqa: B023
                vocab_size=V,
                logits_budget=UNLIMITED,
                with_entropy=with_entropy,
                restriction=restriction,
            )
        kept = [result_N for result_N in results_N if result_N is not None]
        sum((kept_N * torch.linspace(-1, 2, N)).sum() for kept_N in kept).backward()  # type: ignore[union-attr]
        leaves = (hidden_NH, weight_VH, *([bias_V] if biased else []))
        results.append([kept_N.detach() for kept_N in kept] + [leaf.grad for leaf in leaves])
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
            with_entropy=with_entropy_of,
            restriction=restriction,
        )[0]
        for with_entropy_of in (True, False)
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
        outputs = linear_logprobs(hidden_NH, targets_N, head, logits_budget=budget, with_entropy=with_entropy)
        sum(output.sum() for output in outputs if output is not None).backward()  # type: ignore[union-attr]
    assert products.count == expected


class Written(TorchDispatchMode):
    """Record of which operators write into a gradient of the weight, or into a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        target = (kwargs or {}).get("out", args[0] if args else None)
        writes = str(func) in ("aten.copy_.default", "aten.add_.Tensor", "aten.addmm_.default", "aten.mm.out")
        if writes and target._base is not None and target._base.shape == (V, H):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("in_bfloat16", [False, True])
def test_tiles_by_words_write_each_part_of_the_weights_gradient_once(in_bfloat16: bool) -> None:
    """Five tiles of all rows and 8 words; by rows, each of five parts was added for each of three chunks."""
    hidden_NH, weight_VH, _, targets_N = case(0)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16)
    with tiles_by_words(True), autocast, Written() as written:
        head = LinearHead(weight_VH)
        linear_logprobs(hidden_NH, targets_N, head, logits_budget=8 * N, with_entropy=False)[
            0
        ].sum().backward()
    assert written.names == 5 * ["aten.copy_.default" if in_bfloat16 else "aten.mm.out"]


@pytest.mark.parametrize(
    ("num_rows", "expected"),
    [
        (100, (100, 1024)),  # all words
        (12288, (12288, 1344)),  # of 1,365 words, the next multiple of 64 below
        (40000, (16384, 1024)),  # no narrower tiles than 1,024 words: fewer rows
    ],
)
def test_a_tile_of_a_gpu_has_all_rows_that_the_budget_allows(
    num_rows: int, expected: tuple[int, int]
) -> None:
    vocabulary = 1001 if num_rows == 100 else 151_936
    size = head_tiles.tile_size("cuda", num_rows, vocabulary, 2**24)
    assert (size.rows, size.words, size.words_first) == (*expected, True)


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


def test_micro_batches_of_a_bfloat16_head_add_up_in_float32() -> None:
    """A weight whose masters are float32 gets sums of slopes that bfloat16 would round, each time."""
    hidden_NH, weight_VH, _, targets_N = case(5)
    weight_VH = nn.Parameter(weight_VH.detach().bfloat16())
    weight_VH.grad_dtype = torch.float32
    exact_VH = weight_VH.detach().float().requires_grad_()
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            logprobs_N, _ = linear_logprobs(
                hidden_NH.detach(), targets_N, LinearHead(weight_VH), logits_budget=10**6, with_entropy=False
            )
        logprobs_N.sum().backward()
        logits_NV = hidden_NH.detach() @ exact_VH.T
        logits_NV.log_softmax(-1).gather(1, targets_N[:, None]).sum().backward()
    assert weight_VH.grad is not None and exact_VH.grad is not None
    assert weight_VH.grad.dtype == torch.float32
    assert not torch.equal(weight_VH.grad, weight_VH.grad.bfloat16().float())
    torch.testing.assert_close(weight_VH.grad, exact_VH.grad, atol=0.05, rtol=0.05)
