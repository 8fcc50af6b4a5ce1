"""Log-probabilities in chunks: the same numbers and gradients as torch's own, without the memory."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from learner.functional.logprobs import token_logprobs

N, H, V = 23, 8, 50
UNLIMITED, FOUR_ROWS = 10**9, 4 * V + 3


def inputs() -> tuple[Tensor, Tensor, nn.Linear]:
    torch.manual_seed(0)
    hidden = torch.randn(N, H, requires_grad=True)
    return hidden, torch.randint(0, V, (N,)), nn.Linear(H, V)


def run(budget: int, with_entropy: bool) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """Log-probabilities, entropies, and gradients of a loss that weighs each of them differently."""
    hidden, targets, head = inputs()
    logprobs, entropies = token_logprobs(
        hidden, targets, head, vocab_size=V, logits_budget=budget, with_entropy=with_entropy
    )
    weights = torch.linspace(-1, 2, N)
    loss = (logprobs * weights).sum()
    if entropies is not None:
        loss = loss + (entropies * weights.flip(0)).sum()
    loss.backward()
    assert hidden.grad is not None
    gradients = {"hidden": hidden.grad} | {
        n: p.grad for n, p in head.named_parameters() if p.grad is not None
    }
    return logprobs.detach(), entropies, gradients


@pytest.mark.parametrize("budget", [UNLIMITED, FOUR_ROWS, 1])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_log_probabilities_are_minus_torchs_cross_entropy(budget: int, with_entropy: bool) -> None:
    hidden, targets, head = inputs()
    expected = -cross_entropy(head(hidden), targets, reduction="none")
    torch.testing.assert_close(run(budget, with_entropy)[0], expected.detach(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("budget", [FOUR_ROWS, 1])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_chunks_change_neither_values_nor_gradients(budget: int, with_entropy: bool) -> None:
    logprobs, entropies, gradients = run(UNLIMITED, with_entropy)
    in_chunks, entropies_in_chunks, gradients_in_chunks = run(budget, with_entropy)
    torch.testing.assert_close(in_chunks, logprobs, atol=1e-6, rtol=1e-6)
    assert gradients.keys() == gradients_in_chunks.keys() == {"hidden", "weight", "bias"}
    torch.testing.assert_close(gradients_in_chunks, gradients, atol=1e-5, rtol=1e-5)
    assert (entropies is None) == (entropies_in_chunks is None) == (not with_entropy)
    if entropies is not None:
        torch.testing.assert_close(entropies_in_chunks, entropies, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("budget", [UNLIMITED, FOUR_ROWS])
def test_entropies_are_those_of_torchs_categorical(budget: int) -> None:
    hidden, _, head = inputs()
    expected = torch.distributions.Categorical(logits=head(hidden)).entropy()
    torch.testing.assert_close(run(budget, True)[1], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("budget", "kept"), [(UNLIMITED, True), (FOUR_ROWS, False)])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_beyond_the_budget_no_row_of_logits_is_kept_for_the_backward_pass(
    budget: int, kept: bool, with_entropy: bool
) -> None:
    saved: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tuple(tensor.shape))
        return tensor

    hidden, targets, head = inputs()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        token_logprobs(hidden, targets, head, vocab_size=V, logits_budget=budget, with_entropy=with_entropy)
    as_wide_as_the_vocabulary = [
        shape for shape in saved if len(shape) == 2 and shape[1] == V and shape[0] != H
    ]
    assert bool(as_wide_as_the_vocabulary) == kept


@pytest.mark.parametrize("grad", [True, False])
def test_the_head_never_makes_more_rows_at_once_than_the_budget_allows(grad: bool) -> None:
    hidden, targets, head = inputs()
    rows: list[int] = []

    def counted(hidden_NH: Tensor) -> Tensor:
        rows.append(hidden_NH.shape[0])
        logits: Tensor = head(hidden_NH)
        return logits

    with torch.set_grad_enabled(grad):
        token_logprobs(hidden, targets, counted, vocab_size=V, logits_budget=FOUR_ROWS, with_entropy=False)
    assert max(rows) == 4
    assert sum(rows) == N


def test_logits_of_half_precision_are_normalised_in_float32() -> None:
    hidden, targets, head = inputs()
    half = head.to(torch.bfloat16)
    logprobs, _ = token_logprobs(
        hidden.to(torch.bfloat16), targets, half, vocab_size=V, logits_budget=UNLIMITED, with_entropy=False
    )
    assert logprobs.dtype == torch.float32
