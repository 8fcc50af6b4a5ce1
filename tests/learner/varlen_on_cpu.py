"""Kernels for CPUs behind `torch.nn.attention.varlen`, one sequence after another, so that it runs in tests.

All else is PyTorch's: the function, its checks, its formula of the gradient, and how graphs trace it.
"""

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from learner.models import attention

EVERY_TYPE = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@cache
def install() -> None:
    """Register the kernels in this process."""
    from torch.nn.attention import varlen

    varlen._varlen_attn.register_kernel("cpu")(forward)
    varlen._varlen_attn_backward.register_kernel("cpu")(backward)


@pytest.fixture
def packs_on_cpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let policies pack their rows on this machine, in every type of numbers."""
    install()
    monkeypatch.setattr(attention, "PACKS_ON", ("cpu",))
    monkeypatch.setattr(attention, "PACKED_TYPES", EVERY_TYPE)
    attention._is_right.cache_clear()
    yield
    attention._is_right.cache_clear()


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    *_: Any,
    **__: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    starts = cu_seq_q.tolist()
    assert cu_seq_q.dtype == torch.int32 and starts[0] == 0 and starts[-1] == len(query)
    assert is_causal and max_q == max_k == max(b - a for a, b in itertools.pairwise(starts))
    output = apart(query, key, value, starts, scale)
    lse = query.new_zeros((query.shape[1], len(query)), dtype=torch.float32)
    return output.contiguous(), lse, torch.zeros(2, dtype=torch.uint64)


def backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    rng_state: Tensor,
    scale: float | None = None,
    window_size: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    grads = [torch.zeros_like(tensor) for tensor in (query, key, value)]
    num_groups, factor = query.shape[1] // key.shape[1], scale or query.shape[-1] ** -0.5
    for begin, end in itertools.pairwise(cu_seq_q.tolist()):
        part = slice(begin, end)
        queries, slopes = query[part].transpose(0, 1), grad_out[part].transpose(0, 1)
        keys, values = (
            tensor[part].transpose(0, 1).repeat_interleave(num_groups, 0) for tensor in (key, value)
        )
        later = torch.ones(end - begin, end - begin, dtype=torch.bool).triu(1)
        shares = (queries @ keys.mT * factor).masked_fill(later, -torch.inf).softmax(-1)
        by_share = slopes @ values.mT
        by_score = shares * (by_share - (by_share * shares).sum(-1, keepdim=True)) * factor
        grads[0][part] = (by_score @ keys).transpose(0, 1)
        for grad, of_heads in zip(grads[1:], (by_score.mT @ queries, shares.mT @ slopes), strict=True):
            grad[part] = of_heads.unflatten(0, (-1, num_groups)).sum(1).transpose(0, 1)
    return grads[0], grads[1], grads[2]


def apart(query: Tensor, key: Tensor, value: Tensor, starts: list[int], scale: float | None) -> Tensor:
    """Return attention within each sequence of (P, heads, width)."""
    outputs = []
    for begin, end in itertools.pairwise(starts):
        queries, keys, values = (heads[begin:end].transpose(0, 1)[None] for heads in (query, key, value))
        attended = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scale, enable_gqa=True
        )
        outputs.append(attended[0].transpose(0, 1))
    return torch.cat(outputs)
