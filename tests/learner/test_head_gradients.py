"""In bfloat16, the gradient of a head is summed over chunks in float32, whichever head it is.

Relative error against float64 of a weight of 256 words and width 32, on 4,096 tokens:

    chunks                                   1       16      64      256     1,024
    summed in bfloat16 (`shared_cast`)       0.0020  0.0052  0.0093  0.0196  0.0430
    summed in float32 (`by_any_head`)        0.0020  0.0019  0.0019  0.0019  0.0019
    summed in float32 (`by_linear_head`)     0.0019  0.0019  0.0019  0.0019  0.0019
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from learner.functional.distribution_kl import distribution_kl
from learner.functional.linear_logprobs import LinearHead, linear_logprobs
from learner.functional.logprobs import token_logprobs

N, H, V = 4096, 32, 256
Objective = Callable[[Tensor, Tensor, int], Tensor]  # (hidden, weight, chunks) -> loss


def shared_cast(hidden_NH: Tensor, weight_VH: Tensor, num_chunks: int) -> Tensor:
    """The plain way: chunks that are recomputed under one autocast."""

    def chunk(rows_NH: Tensor, targets_N: Tensor) -> Tensor:
        logits_NV = nn.functional.linear(rows_NH, weight_VH).to(
            torch.promote_types(rows_NH.dtype, torch.float)
        )
        return logits_NV.log_softmax(-1).gather(-1, targets_N[:, None]).sum()

    chunks = zip(hidden_NH.chunk(num_chunks), targets().chunk(num_chunks), strict=True)
    return torch.stack([checkpoint(chunk, *part, use_reentrant=False) for part in chunks]).sum()


def by_any_head(hidden_NH: Tensor, weight_VH: Tensor, num_chunks: int) -> Tensor:
    logprobs_N, _ = token_logprobs(
        hidden_NH,
        targets(),
        lambda rows_NH: nn.functional.linear(rows_NH, weight_VH),
        vocab_size=V,
        logits_budget=N // num_chunks * V,
        with_entropy=False,
    )
    return logprobs_N.sum()


def by_linear_head(hidden_NH: Tensor, weight_VH: Tensor, num_chunks: int) -> Tensor:
    budget = N // num_chunks * V
    logprobs_N, _ = linear_logprobs(
        hidden_NH, targets(), LinearHead(weight_VH), logits_budget=budget, with_entropy=False
    )
    return logprobs_N.sum()


def by_kl(hidden_NH: Tensor, weight_VH: Tensor, num_chunks: int) -> Tensor:
    other_VH = weight_VH.detach().flip(0)
    kl_N = distribution_kl(
        hidden_NH,
        lambda rows_NH: nn.functional.linear(rows_NH, weight_VH),
        hidden_NH,
        lambda rows_NH: nn.functional.linear(rows_NH, other_VH),
        vocab_size=V,
        logits_budget=N // num_chunks * V,
    )
    return kl_N.sum()


def targets() -> Tensor:
    return torch.randint(0, V, (N,), generator=torch.Generator().manual_seed(2))


def gradient(objective: Objective, num_chunks: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    hidden_NH = torch.randn(N, H, generator=generator).bfloat16().to(dtype)
    weight_VH = (0.1 * torch.randn(V, H, generator=generator)).bfloat16().to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.float32):
        objective(hidden_NH, weight_VH, num_chunks).backward()
    assert weight_VH.grad is not None
    return weight_VH.grad.double()


def error(objective: Objective, num_chunks: int) -> float:
    exact = gradient(objective, 1, torch.float64)
    return float((gradient(objective, num_chunks, torch.float32) - exact).norm() / exact.norm())


@pytest.mark.parametrize("objective", [by_any_head, by_linear_head, by_kl])
def test_many_chunks_err_no_more_than_one(objective: Objective) -> None:
    assert error(objective, 256) < 1.1 * error(shared_cast, 1)


def test_a_sum_in_bfloat16_would_err_much_more() -> None:
    assert error(shared_cast, 256) > 3 * error(by_any_head, 256)


@pytest.mark.parametrize("kind", ["forward", "kl"])
def test_without_autocast_nothing_changes(kind: str) -> None:
    objective = {"forward": by_any_head, "kl": by_kl}[kind]
    generator = torch.Generator().manual_seed(1)
    hidden_NH = torch.randn(N, H, generator=generator)
    weight_VH = torch.randn(V, H, generator=generator).requires_grad_()
    losses = [objective(hidden_NH, weight_VH, 4)]
    with torch.autocast("cpu", enabled=False):
        losses.append(objective(hidden_NH, weight_VH, 4))
    assert torch.equal(*losses)
