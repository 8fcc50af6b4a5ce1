"""Checks of the head's kernels on a CPU, where Triton interprets them: run by `test_head_kernels.py`.

Each case is computed by the kernels, by PyTorch's own operators, and in float64. The kernels may err at most
1.5 times as much as the operators, of the largest number, or 2·10⁻⁶. Two errors have bounds of their own. In
half precision, a bias's gradient sums rounded slopes. And Triton's interpreter cuts digits where a GPU rounds
to bfloat16, so that gradients there err more; `test_the_slope_of_each_logit` knows how much.
"""

import functools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner.functional import head_on_gpu, head_tiles
from learner.functional.linear_logprobs import LinearHead, _plain_head, linear_logprobs
from learner.functional.logprobs import Restriction

FACTOR, LEAST, ROUNDED, CUT = 1.5, 2e-6, 0.005, 0.02
H = 64
KINDS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Case:
    """Inputs of a head, exact in their type, and what is asked of it."""

    hidden_NH: Tensor
    weight_VH: Tensor
    bias_V: Tensor | None
    targets_N: Tensor
    temperature: float = 1.0
    scale: float = 1.0
    with_entropy: bool = True
    budget: int = 2**24


def make(
    num_rows: int, vocab_size: int, kind: torch.dtype = torch.float32, seed: int = 0, **options: Any
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    hidden_NH = torch.randn((num_rows, H), generator=generator) * options.pop("spread", 1.0)
    weight_VH = torch.randn((vocab_size, H), generator=generator) / 8
    bias_V = torch.randn(vocab_size, generator=generator) if options.pop("biased", False) else None
    targets_N = torch.randint(0, vocab_size, (num_rows,), generator=generator)
    edges = torch.tensor([vocab_size - 1, 0, vocab_size // 2])
    targets_N[: len(edges)] = edges[:num_rows]
    inputs = hidden_NH.to(kind), weight_VH.to(kind), None if bias_V is None else bias_V.to(kind)
    return Case(*inputs, options.pop("targets_N", targets_N), **options)


def loss_of(logprobs_N: Tensor, entropies_N: Tensor | None) -> Tensor:
    count = len(logprobs_N)
    loss = (logprobs_N * torch.linspace(-1, 2, count).to(logprobs_N)).sum()
    return (
        loss
        if entropies_N is None
        else loss + (entropies_N * torch.linspace(3, -1, count).to(logprobs_N)).sum()
    )


def leaves_of(case: Case, kind: torch.dtype) -> list[Tensor]:
    numbers = (case.hidden_NH, case.weight_VH, case.bias_V)
    return [number.to(kind, copy=True).requires_grad_() for number in numbers if number is not None]


def by_head(case: Case, kind: torch.dtype) -> list[Tensor]:
    leaves = leaves_of(case, kind)
    results = linear_logprobs(
        leaves[0],
        case.targets_N,
        LinearHead(leaves[1], leaves[2] if len(leaves) > 2 else None, case.scale),
        logits_budget=case.budget,
        with_entropy=case.with_entropy,
        restriction=Restriction(case.temperature),
    )
    loss_of(*results).backward()
    return [result.detach() for result in results if result is not None] + [leaf.grad for leaf in leaves]  # type: ignore[misc]


def in_float64(case: Case) -> list[Tensor]:
    leaves = leaves_of(case, torch.float64)
    logits_NV = case.scale * leaves[0] @ leaves[1].T
    if len(leaves) > 2:
        logits_NV = logits_NV + leaves[2]
    logprobs_NV = (logits_NV / case.temperature).log_softmax(-1)
    logprobs_N = logprobs_NV.gather(1, case.targets_N[:, None])[:, 0]
    entropies_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
    results = [logprobs_N, *([entropies_N] if case.with_entropy else [])]
    loss_of(logprobs_N, entropies_N if case.with_entropy else None).backward()
    return [result.detach() for result in results] + [leaf.grad for leaf in leaves]  # type: ignore[misc]


def errors(results: list[Tensor], exact: list[Tensor]) -> list[float]:
    """Largest error of each result, of its largest number."""
    pairs = zip(results, exact, strict=True)
    return [float((got - right).abs().max() / right.abs().max().clamp(min=0.01)) for got, right in pairs]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a CPU have the kernels, small blocks, and tiles as narrow as these vocabularies need."""
    from learner.functional import head_kernels

    monkeypatch.setattr(head_on_gpu, "DEVICES", ("cpu",))
    for kind in KINDS:  # their check, once, with the blocks that a GPU has
        head_on_gpu.is_usable(torch.device("cpu"), kind, _plain_head)
    assert not head_on_gpu._broken
    monkeypatch.setattr(head_kernels, "LARGEST_BLOCK", 64)
    monkeypatch.setattr(head_kernels, "SLOPE_BLOCK", 128)
    monkeypatch.setattr(head_tiles, "LEAST_WORDS", 64)
    monkeypatch.setattr(head_tiles, "ALIGNED", 8)


def check(case: Case, kind: torch.dtype) -> None:
    """Hold the kernels' errors against the operators', both against float64."""
    kernels = by_head(case, kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_on_gpu, "DEVICES", ())
        operators = by_head(case, kind)
    exact = in_float64(case)
    pairs = list(zip(errors(kernels, exact), errors(operators, exact), strict=True))
    print(kind, [f"{mine:.1e}/{theirs:.1e}" for mine, theirs in pairs])
    num_results = 1 + case.with_entropy
    for place, (mine, theirs) in enumerate(pairs):
        is_bias = case.bias_V is not None and place == len(pairs) - 1
        bound = ROUNDED if is_bias and kind == torch.float16 else LEAST
        if kind == torch.bfloat16 and place >= num_results:
            bound = CUT
        assert mine <= max(FACTOR * theirs, bound), (place, mine, theirs)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("biased", "with_entropy"), [(False, False), (True, True)])
def test_kernels_err_no_more_than_operators(kind: torch.dtype, biased: bool, with_entropy: bool) -> None:
    """Several tiles of words, and two chunks of rows."""
    budget = 6 * 88 * kind.itemsize // head_on_gpu.HELD + 1
    options = {
        "biased": biased,
        "with_entropy": with_entropy,
        "temperature": 0.7,
        "scale": 1.3,
        "budget": budget,
    }
    check(make(10, 200, kind, **options), kind)


@pytest.mark.parametrize(
    ("num_rows", "vocab_size"),
    [(1, 1001), (1, 1), (2, 7), (3, 63), (3, 64), (3, 65), (2, 127), (2, 128), (2, 129)],
)
def test_sizes_at_the_edges_of_blocks(num_rows: int, vocab_size: int) -> None:
    check(make(num_rows, vocab_size, biased=True), torch.float32)


def test_a_block_of_the_size_that_a_gpu_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from learner.functional import head_kernels

    monkeypatch.setattr(head_kernels, "LARGEST_BLOCK", 4096)
    monkeypatch.setattr(head_kernels, "SLOPE_BLOCK", 1024)
    check(make(2, 4097), torch.float32)


@settings(deadline=None, max_examples=12, derandomize=True, phases=[Phase.generate])
@given(
    seed=st.integers(0, 2**20),
    num_rows=st.integers(1, 5),
    vocab_size=st.integers(2, 150),
    kind=st.sampled_from(KINDS),
    budget=st.sampled_from([60, 200, 2**24]),
    temperature=st.floats(0.3, 3.0),
    biased=st.booleans(),
    with_entropy=st.booleans(),
)
def test_random_sizes(num_rows: int, vocab_size: int, kind: torch.dtype, **options: Any) -> None:
    check(make(num_rows, vocab_size, kind, **options), kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("spread", [0.0, 2e3])
def test_extreme_and_equal_logits(kind: torch.dtype, spread: float) -> None:
    """At the spread of 2,000 logits reach ±10⁴; at 0 all are equal, and entropies are log V."""
    check(make(4, 300, kind, spread=spread), kind)


@pytest.mark.parametrize(
    ("kind", "digit"), [(torch.float32, 1e-5), (torch.float16, 2**-11), (torch.bfloat16, 2**-7)]
)
def test_the_slope_of_each_logit(kind: torch.dtype, digit: float) -> None:
    """Hold each slope of a tile of the words 130 to 429 against float64, from the same logits."""
    from learner.functional import head_kernels

    generator = torch.Generator().manual_seed(0)
    tile_RW = (3 * torch.randn((4, 300), generator=generator)).to(kind)
    logits_RW, targets_R = tile_RW.double(), torch.tensor([130, 429, 129, 430])
    highest_R = logits_RW.amax(-1)
    logs_R = (logits_RW - highest_R[:, None]).exp().sum(-1).log() + 0.5  # other tiles have words, too
    entropies_R, grad_logprobs_R, grad_entropies_R = torch.randn((3, 4), generator=generator).double()
    logprobs_RW = logits_RW - (highest_R + logs_R)[:, None]
    expected_RW = -grad_logprobs_R[:, None] * logprobs_RW.exp()
    expected_RW[0, 0] += grad_logprobs_R[0]
    expected_RW[1, 299] += grad_logprobs_R[1]
    expected_RW -= grad_entropies_R[:, None] * logprobs_RW.exp() * (logprobs_RW + entropies_R[:, None])
    rows_R5 = torch.stack([highest_R, logs_R, entropies_R, grad_logprobs_R, grad_entropies_R], 1).float()
    head_kernels.to_slope(tile_RW, None, targets_R, 130, rows_R5, True)
    assert bool(((tile_RW.double() - expected_RW).abs() <= digit * expected_RW.abs() + 2e-7).all())


def test_words_that_never_come() -> None:
    """A bias of -10³⁰ errs as little as elsewhere; one of -∞ gives what the rest of the words gives."""
    case = make(4, 300, biased=True)
    assert case.bias_V is not None
    never_V = torch.arange(300) % 50 == 7
    never_V[case.targets_N] = False
    case.bias_V[never_V] = -1e30
    check(case, torch.float32)
    expected = by_head(case, torch.float32)
    case.bias_V[never_V] = -torch.inf
    for got, right in zip(by_head(case, torch.float32), expected, strict=True):
        assert torch.equal(got, right)


def test_large_logits_cost_entropies_no_digits() -> None:
    """Add 10⁴ to all logits of two words: by hand, p = 1 / (1 + e), H = log(1 + e) - e / (1 + e)."""
    head = LinearHead(torch.zeros(2, H), torch.tensor([1e4, 1e4 + 1]))
    logprobs_N, entropies_N = linear_logprobs(
        torch.zeros(1, H), torch.tensor([0]), head, logits_budget=99, with_entropy=True
    )
    assert entropies_N is not None
    assert float(logprobs_N[0]) == pytest.approx(-1.3132617, abs=1e-6)
    assert float(entropies_N[0]) == pytest.approx(0.5822031, abs=1e-6)


def test_log_probabilities_are_the_same_with_and_without_entropies() -> None:
    one, other = (
        by_head(make(5, 300, with_entropy=with_entropy), torch.float32) for with_entropy in (True, False)
    )
    assert torch.equal(one[0], other[0])


def test_no_row_a_frozen_weight_and_no_gradient() -> None:
    case = make(0, 20)
    logprobs_N, entropies_N, d_hidden_NH, d_weight_VH = by_head(case, torch.float32)
    assert logprobs_N.shape == entropies_N.shape == (0,) and d_hidden_NH.shape == (0, H)
    assert torch.equal(d_weight_VH, torch.zeros(20, H))
    hidden_NH, weight_VH = leaves_of(make(3, 20), torch.float32)
    head = LinearHead(weight_VH.requires_grad_(False))
    options: dict[str, Any] = {"logits_budget": 99, "with_entropy": False}
    logprobs_N, _ = linear_logprobs(hidden_NH, torch.tensor([0, 1, 2]), head, **options)
    logprobs_N.sum().backward(retain_graph=True)
    once_NH = hidden_NH.grad.clone()  # type: ignore[union-attr]
    logprobs_N.sum().backward()
    assert weight_VH.grad is None and torch.equal(hidden_NH.grad, 2 * once_NH)  # type: ignore[arg-type]
    with torch.inference_mode():
        scored_N, _ = linear_logprobs(hidden_NH, torch.tensor([0, 1, 2]), head, **options)
    assert torch.equal(scored_N, logprobs_N)


def test_under_autocast_the_weights_gradient_is_float32() -> None:
    case = make(9, 300)
    with torch.autocast("cpu", torch.bfloat16):
        kernels = by_head(case, torch.float32)
    assert all(number.dtype == torch.float32 for number in kernels)
    assert max(errors(kernels, in_float64(case))) < 0.02


@pytest.mark.parametrize(("name", "raises"), [("add_sums", True), ("add_sums", False), ("to_slope", False)])
def test_kernels_that_do_not_work_are_not_used(
    name: str, raises: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from learner.functional import head_kernels

    work = getattr(head_kernels, name)

    def wrong(tile_RW: Tensor, *arguments: Any) -> None:
        if raises:
            raise RuntimeError("no compiler here")
        work(tile_RW, *arguments)
        tile_RW *= 1.05  # the slope
        arguments[3][:, 2] *= 1.05  # the total

    monkeypatch.setattr(head_on_gpu, "_broken", set())
    monkeypatch.setattr(head_on_gpu, "_is_right", functools.cache(head_on_gpu._is_right.__wrapped__))
    monkeypatch.setattr(head_kernels, name, wrong)
    case = make(5, 100)
    results = [by_head(case, torch.float32) for _ in range(2)]
    assert head_on_gpu._broken == {torch.device("cpu")}
    monkeypatch.setattr(head_on_gpu, "DEVICES", ())
    for right, *got in zip(by_head(case, torch.float32), *results, strict=True):
        assert all(torch.equal(number, right) for number in got)
    (record,) = caplog.records
    what = "RuntimeError: no compiler here" if raises else "in a check with torch.float32, the "
    assert record.getMessage().startswith(f"the head's kernels do not work on cpu ({what}")
