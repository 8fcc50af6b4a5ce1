"""Triton kernels over one tile of a head's logits: sums of its rows, and the slope in the tile's place.

A tile (R, W) lies row after row in the type of the products; all arithmetic is float32. With a bias b, the
logits x are the tile's numbers plus b. Importing this module imports Triton, so no run on a CPU imports it.

The sums of a row, with m its highest logit so far:

    total    = Σ_v exp(x_v - m)              shifted = Σ_v exp(x_v - m) (x_v - m)
    log π(a) = (x_a - m) - log total         H       = log total - shifted / total

Logits of ±10⁴ lose no digits, because only differences from m are summed.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

LOWEST = -1e30  # m of a row before its first tile; -inf would make differences NaN
LARGEST_BLOCK = 4096  # words that a row's program reads in one step
SLOPE_BLOCK = 1024  # words whose slope one program makes


def add_sums(tile_RW: Tensor, bias_W: Tensor | None, targets_R: Tensor, start: int, sums_R4: Tensor) -> None:
    """Add a tile to the sums of its rows.

    Args:
        bias_W: in float32, like all sums.
        start: the tile's first word.
        sums_R4: the drawn token's logit, m, total and shifted; they start at 0, `LOWEST`, 0 and 0.
    """
    num_rows, num_words = tile_RW.shape
    block = min(LARGEST_BLOCK, triton.next_power_of_2(num_words))
    arguments = (tile_RW, tile_RW if bias_W is None else bias_W, targets_R, sums_R4, num_words, start)
    options: dict[str, Any] = {"BLOCK": block, "num_warps": 8 if block > 1024 else 4}
    if num_rows:
        _add_sums[(num_rows,)](*arguments, HAS_BIAS=bias_W is not None, **options)


def to_slope(
    tile_RW: Tensor, bias_W: Tensor | None, targets_R: Tensor, start: int, rows_R5: Tensor, has_entropy: bool
) -> None:
    """Replace a tile's logits by ∂L/∂logits, rounded to the tile's type.

    Args:
        bias_W: in float32, like all numbers of rows.
        start: the tile's first word.
        rows_R5: m, log total, H, ∂L/∂log π(a) and ∂L/∂H.
        has_entropy: whether the loss has entropies; otherwise H and ∂L/∂H are not read.
    """
    num_rows, num_words = tile_RW.shape
    block = min(SLOPE_BLOCK, triton.next_power_of_2(num_words))
    arguments = (tile_RW, tile_RW if bias_W is None else bias_W, targets_R, rows_R5, num_words, start)
    options: dict[str, Any] = {"HAS_BIAS": bias_W is not None, "HAS_ENTROPY": has_entropy, "BLOCK": block}
    if num_rows:
        _to_slope[(num_rows, triton.cdiv(num_words, block))](*arguments, **options)


@triton.jit(do_not_specialize=["start"])  # type: ignore[untyped-decorator]
def _add_sums(  # type: ignore[no-untyped-def]
    tile, bias, targets, sums, num_words, start, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """Add all words of one row."""
    row = tl.program_id(0).to(tl.int64)  # a tile may have more than 2³¹ numbers
    sums += row * 4
    tile += row * num_words
    highest = tl.load(sums + 1)
    total = tl.load(sums + 2)
    shifted = tl.load(sums + 3)
    for first in range(0, num_words, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < num_words
        logit = tl.load(tile + column, mask=inside, other=-float("inf")).to(tl.float32)
        if HAS_BIAS:
            logit += tl.load(bias + column, mask=inside, other=0.0)
        higher = tl.maximum(highest, tl.max(logit, 0))
        power = tl.exp(logit - higher)
        shrunk = tl.exp(highest - higher)
        # if the power is 0, the difference may be -inf, and their product NaN
        weighted = tl.where(power > 0, power * (logit - higher), 0.0)
        shifted = shrunk * (shifted + total * (highest - higher)) + tl.sum(weighted, 0)
        total = shrunk * total + tl.sum(power, 0)
        highest = higher
    column = tl.load(targets + row) - start
    inside = (column >= 0) & (column < num_words)
    drawn = tl.load(tile + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        drawn += tl.load(bias + column, mask=inside, other=0.0)
    tl.store(sums, tl.load(sums) + drawn)
    tl.store(sums + 1, highest)
    tl.store(sums + 2, total)
    tl.store(sums + 3, shifted)


@triton.jit(do_not_specialize=["start"])  # type: ignore[untyped-decorator]
def _to_slope(  # type: ignore[no-untyped-def]
    tile,
    bias,
    targets,
    rows,
    num_words,
    start,
    HAS_BIAS: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Replace one block of words of one row."""
    row = tl.program_id(0).to(tl.int64)
    tile += row * num_words
    rows += row * 5
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_words
    logit = tl.load(tile + column, mask=inside, other=-float("inf")).to(tl.float32)
    if HAS_BIAS:
        logit += tl.load(bias + column, mask=inside, other=0.0)
    logprob = (logit - tl.load(rows)) - tl.load(rows + 1)
    probability = tl.exp(logprob)
    grad = tl.load(rows + 3)
    drawn = column == tl.load(targets + row) - start
    slope = tl.where(drawn, grad, 0.0) - grad * probability
    if HAS_ENTROPY:
        towards = probability * (logprob + tl.load(rows + 2))
        slope -= tl.load(rows + 4) * tl.where(probability > 0, towards, 0.0)
    tl.store(tile + column, slope.to(tile.dtype.element_ty), mask=inside)
