"""The linear head on a GPU: one tile at a time, in the type of the products, with two kernels.

All tiles share one piece of memory. The forward kernel reads a tile once, for both log-probabilities and
entropies. The backward kernel writes the slope in the tile's place. The mathematics is as in
`learner.functional.linear_logprobs`, whose PyTorch operators take over if the kernels do not work.
"""

import functools
import importlib
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from learner.functional.head_tiles import TileSize, tile_size

DEVICES = ("cuda",)  # types of devices for which Triton makes kernels
KINDS = (torch.bfloat16, torch.float16, torch.float32)  # types in which products are computed
HELD = 12  # bytes that a memory plan counts for each number of a budget: three of float32
TOLERANCE = 0.02  # allowed error, relative to the largest number; bfloat16 rounds a gradient by up to 0.008
CHECK_SIZE = TileSize(rows=3, words=512, words_first=True)

# (hidden_NH, weight_VH, bias_V or None, targets_N) -> (logprobs_N, entropies_N)
Head = Callable[[Tensor, Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]]

_broken: set[torch.device] = set()  # devices on which the check failed


def product_type(hidden_NH: Tensor) -> torch.dtype:
    """Return the type of products: autocast's, or the states'."""
    device = hidden_NH.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_NH.dtype


def kernel_logprobs(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    scales: tuple[float, float],
    logits_budget: int,
) -> tuple[Tensor, Tensor]:
    """Return log π(target) and entropies (N,), in float32; π = softmax of s · hidden · weightᵀ + t · bias.

    A tile takes at most the bytes that `logits_budget` numbers take elsewhere, so it has more numbers.

    Args:
        scales: s and t.
    """
    budget = logits_budget * HELD // product_type(hidden_NH).itemsize
    size = tile_size("cuda", len(hidden_NH), len(weight_VH), budget)
    logprobs_N, entropies_N = _KernelLogprobs.apply(hidden_NH, weight_VH, bias_V, targets_N, scales, size)
    return logprobs_N, entropies_N


class _Tile:
    """Memory for one tile's logits, used again for each tile."""

    def __init__(self, hidden_NH: Tensor, weight_VH: Tensor, size: TileSize) -> None:
        self.hidden_NH, self.weight_VH = hidden_NH, weight_VH
        numbers = min(size.rows, len(hidden_NH)) * min(size.words, len(weight_VH))
        self._memory = torch.empty(numbers, dtype=hidden_NH.dtype, device=hidden_NH.device)

    def logits(self, rows: slice, words: slice) -> Tensor:
        """Return hidden · weightᵀ, (R, W); the next call overwrites it."""
        hidden_RH, weight_WH = self.hidden_NH[rows], self.weight_VH[words]
        count = len(hidden_RH) * len(weight_WH)
        logits_RW = self._memory[:count].view(len(hidden_RH), len(weight_WH))
        return torch.mm(hidden_RH, weight_WH.T, out=logits_RW)


class _KernelLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        scales: tuple[float, float],
        size: TileSize,
    ) -> tuple[Tensor, Tensor]:
        kernels, kind = _kernels(), product_type(hidden_NH)
        bias_V = None if bias_V is None else (bias_V * scales[1]).float()
        scaled_NH, cast_VH = (hidden_NH * scales[0]).to(kind), weight_VH.to(kind)
        targets_N = targets_N.contiguous()
        sums_N4 = scaled_NH.new_zeros((len(scaled_NH), 4), dtype=torch.float32)
        sums_N4[:, 1] = kernels.LOWEST
        tile = _Tile(scaled_NH, cast_VH, size)
        for rows, words in size.places(len(scaled_NH), len(cast_VH)):
            bias_W = None if bias_V is None else bias_V[words]
            logits_RW = tile.logits(rows, words)
            kernels.add_sums(logits_RW, bias_W, targets_N[rows], words.start, sums_N4[rows])
        drawn_N, highest_N, total_N, shifted_N = sums_N4.unbind(1)
        logs_N = total_N.log()
        entropies_N = logs_N - shifted_N / total_N
        ctx.save_for_backward(scaled_NH, cast_VH, bias_V, targets_N, highest_N, logs_N, entropies_N)
        ctx.scales, ctx.size, ctx.kinds = scales, size, (hidden_NH.dtype, weight_VH.dtype)
        ctx.set_materialize_grads(False)
        return drawn_N - highest_N - logs_N, entropies_N

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_logprobs_N: Tensor | None, grad_entropies_N: Tensor | None) -> Any:
        hidden_NH, weight_VH, bias_V, targets_N, highest_N, logs_N, entropies_N = ctx.saved_tensors
        kernels, has_entropy = _kernels(), grad_entropies_N is not None
        grads = (
            torch.zeros_like(logs_N) if grad is None else grad for grad in (grad_logprobs_N, grad_entropies_N)
        )
        rows_N5 = torch.stack([highest_N, logs_N, entropies_N, *grads], 1)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        d_hidden_NH = torch.zeros_like(hidden_NH, dtype=torch.float32) if needs_hidden else None
        d_weight_VH = torch.empty_like(weight_VH, dtype=torch.float32) if needs_weight else None
        d_bias_V = torch.zeros_like(bias_V) if needs_bias else None
        tile = _Tile(hidden_NH, weight_VH, ctx.size)
        for rows, words in ctx.size.places(len(hidden_NH), len(weight_VH)):
            bias_W = None if bias_V is None else bias_V[words]
            slope_RW = tile.logits(rows, words)
            kernels.to_slope(slope_RW, bias_W, targets_N[rows], words.start, rows_N5[rows], has_entropy)
            if d_bias_V is not None:
                d_bias_V[words] += slope_RW.sum(0, dtype=torch.float32)
            if d_hidden_NH is not None:
                _product(d_hidden_NH[rows], slope_RW, weight_VH[words], adds=True)
            if d_weight_VH is not None:
                _product(d_weight_VH[words], slope_RW.T, hidden_NH[rows], adds=rows.start > 0)
        return (
            None if d_hidden_NH is None else (d_hidden_NH * ctx.scales[0]).to(ctx.kinds[0]),
            d_weight_VH,  # float32; autograd rounds it to the weight's type if necessary
            None if d_bias_V is None else d_bias_V * ctx.scales[1],
            *[None] * 3,
        )


def _product(target: Tensor, left: Tensor, right: Tensor, *, adds: bool) -> None:
    """Write left @ right into a float32 tensor, or add it; a GPU does not round the product first."""
    if left.dtype == target.dtype:
        torch.addmm(target, left, right, beta=int(adds), out=target)
    elif not left.is_cuda:  # PyTorch lacks this product on CPUs
        target.copy_(target + left @ right if adds else left @ right)
    elif adds:
        target += torch.mm(left, right, out_dtype=target.dtype)
    else:
        torch.mm(left, right, out_dtype=target.dtype, out=target)


# ---- check whether the kernels work ----


def is_usable(device: torch.device, kind: torch.dtype, plain: Head) -> bool:
    """Return whether the kernels support this device and type, and agree with `plain` on a few rows.

    The check runs before their first use in a process. A failure gives one warning.
    """
    if device.type not in DEVICES or kind not in KINDS or device in _broken:
        return False
    return _is_right(device, kind, plain)


def _kernels() -> Any:
    """Import Triton only when used, so that a run on a CPU need not wait for it."""
    return importlib.import_module("learner.functional.head_kernels")


@functools.cache
def _is_right(device: torch.device, kind: torch.dtype, plain: Head) -> bool:
    try:
        fault = _fault(device, kind, plain, True) or _fault(device, kind, plain, False)
    except Exception as error:  # Triton's error, or its compiler's or driver's
        fault = f"{type(error).__name__}: {error}"
    if fault:
        _broken.add(device)
        logging.getLogger(__name__).warning(
            "the head's kernels do not work on %s (%s); PyTorch's operators replace them: "
            "results are the same, and updates are slower",
            device,
            fault,
        )
    return not fault


@torch.inference_mode(False)
@torch.enable_grad()
def _fault(device: torch.device, kind: torch.dtype, plain: Head, biased: bool) -> str:
    """Return the numbers or gradients of a few rows that differ from those of `plain`; "": none."""
    shapes = ((5, 16), (1001, 16), (1001,), (5,), (5,))
    generator = torch.Generator().manual_seed(0)
    *leaves, grad_logprobs_N, grad_entropies_N = (
        torch.randn(shape, generator=generator).to(device) for shape in shapes
    )
    targets_N = torch.tensor([0, 1000, 511, 512, 77], device=device)

    def by_kernels(hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_N: Tensor) -> Any:
        return _KernelLogprobs.apply(hidden_NH, weight_VH, bias_V, targets_N, (1.0, 1.0), CHECK_SIZE)

    results = []
    for head in (plain, by_kernels):
        hidden_NH, weight_VH, bias_V = (leaf.to(kind, copy=True).requires_grad_() for leaf in leaves)
        with torch.autocast(device.type, enabled=False):
            logprobs_N, entropies_N = head(hidden_NH, weight_VH, bias_V if biased else None, targets_N)
        (logprobs_N * grad_logprobs_N + entropies_N * grad_entropies_N).sum().backward()
        numbers = {"log-probabilities": logprobs_N.detach(), "entropies": entropies_N.detach()}
        numbers |= {"states' gradient": hidden_NH.grad, "weight's gradient": weight_VH.grad}
        results.append(numbers | ({"bias's gradient": bias_V.grad} if biased else {}))
    for name, right in results[0].items():
        error = float((results[1][name] - right).abs().max() / right.abs().max())
        if not error <= TOLERANCE:
            return f"in a check with {kind}, the {name} differ by {error:.2g} of the largest"
    return ""
