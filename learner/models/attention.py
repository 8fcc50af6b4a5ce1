"""Attention in float32 on CPUs, and over packed sequences on GPUs.

PyTorch's bfloat16 kernel for CPUs takes nine times as long, forward and backward: 64 ms against 7 ms, on two
cores with AMX, for 16 sequences of 64 tokens and 12 heads of 64. Products of weights stay in bfloat16.

A packed row holds sequences one after another. `torch.nn.attention.varlen` separates them by their starts,
needs no padding, and makes no plan for each new shape. Its kernel is FlashAttention: for GPUs, half
precision, and heads of at most 256 numbers.
"""

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_ROUNDS: ContextVar[bool] = ContextVar("rounds", default=False)

PACKS_ON = ("cuda",)  # types of devices with a kernel for packed rows
PACKED_TYPES = (torch.bfloat16, torch.float16)
MOST_WIDTH, WIDTH_STEP = 256, 8  # a head's largest width, and the step between widths
FIRST_CAPABILITY = (8, 0)  # first compute capability that FlashAttention supports
TOLERANCE = 0.02  # allowed error, relative to the largest number; bfloat16 rounds a gradient by up to 0.008
CHECK_LENGTHS = (5, 1, 130)  # more than one tile of the kernel


def attend_in_float32() -> None:
    """Let transformers models with "sdpa" attention compute it in float32 on CPUs, in this process."""
    from transformers import AttentionInterface

    AttentionInterface.register("sdpa", attend)


@contextmanager
def rounding_attention() -> Iterator[None]:
    """Compute attention in bfloat16 under autocast, as engines do, so that a probe measures the change."""
    before = _ROUNDS.set(True)
    try:
        yield
    finally:
        _ROUNDS.reset(before)


def rounds_attention() -> bool:
    """Return whether `rounding_attention` is open; False in a compiled graph, which can't read the variable.

    Compiled blocks call this before they enter a graph, and stay plain if it is True.
    """
    return not torch.compiler.is_compiling() and _ROUNDS.get()


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Return attention's output in the type of `value`, like transformers' function."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    starts_E = options.get("cu_seq_lens_q")
    if starts_E is not None:
        scale = options.get("scaling")
        return attend_packed(query, key, value, starts_E, options["max_length_q"], scale), None
    if query.device.type != "cpu" or not torch.is_autocast_enabled("cpu") or rounds_attention():
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, None
    inputs = (query, key, value, attention_mask)
    with torch.autocast("cpu", enabled=False):
        output, _ = sdpa_attention_forward(
            module, *map(_exact, inputs), **{name: _exact(option) for name, option in options.items()}
        )
    return output.to(value.dtype), None


def _exact(option: Any) -> Any:
    """Return a float tensor in float32, and anything else unchanged; T5's position bias is an option."""
    return option.float() if isinstance(option, Tensor) and option.is_floating_point() else option


# ---- packed rows ----


def attend_packed(
    query_1QPD: Tensor,
    key_1KPD: Tensor,
    value_1KPD: Tensor,
    starts_E: Tensor,
    longest: int,
    scale: float | None,
) -> Tensor:
    """Return causal attention within each sequence of a packed row, (1, P, Q, D), without dropout.

    Args:
        starts_E: first place of each sequence, and P at the end; int32, on the device.
        longest: length of the longest sequence.
        scale: factor of scores; None: 1/√D.
    """
    from torch.nn.attention.varlen import varlen_attn

    kind = product_type(query_1QPD.device, query_1QPD.dtype)
    query_PQD, key_PKD, value_PKD = (
        heads.squeeze(0).transpose(0, 1).to(kind) for heads in (query_1QPD, key_1KPD, value_1KPD)
    )
    output: Any = varlen_attn(
        *(query_PQD, key_PKD, value_PKD, starts_E, starts_E, longest, longest),
        scale=scale,
        window_size=(-1, 0),
        enable_gqa=query_PQD.shape[1] != key_PKD.shape[1],
    )
    return output[None].to(value_1KPD.dtype)


def product_type(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return the type of products of tensors with this type: autocast's, or the tensors'."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else dtype


def packs_on(device: torch.device, kind: torch.dtype, heads: tuple[int, int], width: int) -> bool:
    """Return whether a device attends over packed rows in this type, with a plain pass's numbers.

    The check runs before their first use in a process. A failure gives one warning.

    Args:
        heads: heads of queries and of keys.
        width: numbers of a head.
    """
    if device.type not in PACKS_ON or kind not in PACKED_TYPES:
        return False
    return width <= MOST_WIDTH and not width % WIDTH_STEP and _is_right(device, kind, heads, width)


@functools.cache
def _is_right(device: torch.device, kind: torch.dtype, heads: tuple[int, int], width: int) -> bool:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < FIRST_CAPABILITY:
        return False
    try:
        fault = _fault(device, kind, heads, width)
    except Exception as error:  # this build lacks some kernels
        fault = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if fault:
        logging.getLogger(__name__).warning(
            "attention over packed rows does not work on %s (%s), so sequences are padded; results are the "
            "same, and updates are slower",
            device,
            fault,
        )
    return not fault


@torch.inference_mode(False)
@torch.enable_grad()
def _fault(device: torch.device, kind: torch.dtype, heads: tuple[int, int], width: int) -> str:
    """Compare packed sequences with single ones; return the first numbers that differ, or ""."""
    generator, total = torch.Generator().manual_seed(0), sum(CHECK_LENGTHS)
    shapes = [(1, count, total, width) for count in (heads[0], heads[1], heads[1])]
    *leaves, slope = (
        torch.randn(shape, generator=generator).to(device, kind)
        for shape in (*shapes, (1, total, heads[0], width))
    )
    starts = torch.tensor((0, *CHECK_LENGTHS)).cumsum(0).to(device, torch.int32)
    results = []
    for exact in (True, False):
        query, key, value = inputs = [
            leaf.to(torch.float32 if exact else kind, copy=True).requires_grad_() for leaf in leaves
        ]
        with torch.autocast(device.type, enabled=False):
            packed = (
                one_at_a_time(query, key, value)
                if exact
                else attend_packed(query, key, value, starts, max(CHECK_LENGTHS), None)
            )
        packed.backward(slope.to(packed.dtype))
        results.append([packed.detach(), *(leaf.grad for leaf in inputs)])
    names = ("outputs", "queries' gradients", "keys' gradients", "values' gradients")
    for name, right, got in zip(names, *results, strict=True):
        error = float((got.float() - right).abs().max() / right.abs().max())
        if not error <= TOLERANCE:
            return f"in a check with {kind}, the {name} differ by {error:.2g} of the largest"
    return ""


def one_at_a_time(query_1QPD: Tensor, key_1KPD: Tensor, value_1KPD: Tensor) -> Tensor:
    """Return the result of `attend_packed` for sequences of `CHECK_LENGTHS`, by a plain call for each."""
    parts = (heads.split(CHECK_LENGTHS, dim=2) for heads in (query_1QPD, key_1KPD, value_1KPD))
    outputs = [
        functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        for query, key, value in zip(*parts, strict=True)
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2)
