"""Log-probabilities and entropies of a linear head, without an array of all logits.

Logits are computed tile by tile: some rows by some words of the vocabulary. The forward pass keeps the sums
of each row. The backward pass computes each tile again and makes its gradient from those sums. With the
logits x:

    z         = log Σ_v exp x_v
    log π(a)  = x_a - z
    H         = z - Σ_v π_v x_v
    ∂L/∂x_v   = g (1[v = a] - π_v) - h π_v (log π_v + H)        g = ∂L/∂log π(a), h = ∂L/∂H

A CPU instead keeps the first tiles, as many as fit the budget. With entropies or restrictions it keeps none,
because their gradients need more than probabilities.

Sums over tiles: Milakov and Gimelshein 2018 (arXiv 1805.02867). Gradients from kept sums: Wijmans et al. 2024
(arXiv 2411.09009), there for the cross-entropy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from learner.functional.head_on_gpu import is_usable, kernel_logprobs, product_type
from learner.functional.head_tiles import TileSize, tile_size
from learner.functional.logprobs import WHOLE, Restriction
from learner.functional.repetition import RepetitionPenalty
from learner.functional.support import unpack_bits

LOWEST = -1e30  # maximum of a row without any allowed word; -inf would make differences NaN


@dataclass(frozen=True, slots=True)
class LinearHead:
    """Head with the logits `scale` · hidden · weightᵀ + bias."""

    weight_VH: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0


def linear_logprobs(
    hidden_NH: Tensor,
    targets_N: Tensor,
    head: LinearHead,
    *,
    logits_budget: int,
    with_entropy: bool,
    restriction: Restriction = WHOLE,
) -> tuple[Tensor, Tensor | None]:
    """Return each token's log π(target), and π's entropies or None; π = softmax of the restricted logits.

    The result equals `token_logprobs` up to rounding. At most `logits_budget` logits exist at once. On a GPU,
    logits take the bytes of three times as many float32 numbers. On a CPU as many probabilities may wait for
    the backward pass. Sums and the weight's gradient are float32, even under autocast.

    Returns:
        (logprobs_N, entropies_N or None), in float32, or in float64 if the hidden states are.
    """
    restricts = restriction.bits_NW is not None or restriction.repetition is not None
    scales = head.scale / restriction.temperature, 1 / restriction.temperature
    if not restricts and is_usable(hidden_NH.device, product_type(hidden_NH), _plain_head):
        logprobs_N, entropies_N = kernel_logprobs(
            hidden_NH, head.weight_VH, head.bias_V, targets_N, scales, logits_budget
        )
        return logprobs_N, entropies_N if with_entropy else None
    size = tile_size(hidden_NH.device.type, len(hidden_NH), len(head.weight_VH), logits_budget)
    keeps = torch.is_grad_enabled() and not (size.words_first or restricts or with_entropy)
    logprobs_N, entropies_N = _LinearLogprobs.apply(
        hidden_NH,
        head.weight_VH,
        head.bias_V,
        targets_N,
        restriction.bits_NW,
        restriction.repetition,
        scales,
        size,
        with_entropy,
        logits_budget if keeps else 0,
    )
    return logprobs_N, entropies_N


def _plain_head(
    hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies by PyTorch's operators, in one tile."""
    size = TileSize(len(hidden_NH), len(weight_VH) + 7, words_first=False)
    rest = (None, None, (1.0, 1.0), size, True, 0)
    logprobs_N, entropies_N = _LinearLogprobs.apply(hidden_NH, weight_VH, bias_V, targets_N, *rest)
    return logprobs_N, entropies_N


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Logits in tiles, restricted, in the exact type: float32, or float64 for float64 inputs."""

    hidden_NH: Tensor  # scaled, and like the weights in the type of the products
    weight_VH: Tensor
    bias_V: Tensor | None
    targets_N: Tensor
    bits_NW: Tensor | None
    repetition: RepetitionPenalty | None
    size: TileSize

    @property
    def exact(self) -> torch.dtype:
        return torch.promote_types(self.hidden_NH.dtype, torch.float32)

    def places(self) -> Iterator[tuple[slice, slice]]:
        return self.size.places(len(self.hidden_NH), len(self.weight_VH))

    def logits(self, rows: slice, words: slice) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return a tile's logits (R, W), excluded words or None, and a penalty's factors or None."""
        weight_WH = self.weight_VH[words]
        logits_RW = (self.hidden_NH[rows] @ weight_WH.T).to(self.exact)
        if self.bias_V is not None:
            logits_RW += self.bias_V[words]
        factors_RW = None
        if self.repetition is not None:
            factors_RW = self.repetition.factors(logits_RW, rows, words)
            logits_RW *= factors_RW
        if self.bits_NW is None:
            return logits_RW, None, factors_RW
        bits_RB = self.bits_NW[rows, words.start // 8 : words.stop // 8]
        excluded_RW = ~unpack_bits(bits_RB, len(weight_WH))
        return logits_RW.masked_fill_(excluded_RW, -torch.inf), excluded_RW, factors_RW

    def drawn(self, rows: slice, words: slice) -> tuple[Tensor, Tensor]:
        """Return each row's column of its target token, (R, 1), and whether the tile has it, (R,).

        Columns of other tiles are clamped. Indexing rows by a mask would make the CPU wait at each tile until
        a GPU has counted them.
        """
        columns_R = self.targets_N[rows] - words.start
        width = min(self.size.words, len(self.weight_VH) - words.start)
        cut_R = columns_R.clamp(0, width - 1)
        return cut_R[:, None], columns_R == cut_R


class _Kept:
    """Powers exp(x - m) of the first tiles, and their rows' m: as many numbers as fit the budget."""

    def __init__(self, budget: int) -> None:
        self._left = budget
        self._tiles: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def keep(self, rows: slice, words: slice, powers_RW: Tensor, highest_R: Tensor) -> None:
        if powers_RW.numel() <= self._left:
            self._left -= powers_RW.numel()
            self._tiles[rows.start, words.start] = powers_RW, highest_R

    def take(self, rows: slice, words: slice) -> tuple[Tensor, Tensor] | None:
        """Return a tile's powers (R, W) and its m (R,), once; None: compute them again."""
        return self._tiles.pop((rows.start, words.start), None)

    def __len__(self) -> int:
        return len(self._tiles)


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        bits_NW: Tensor | None,
        repetition: RepetitionPenalty | None,
        scales: tuple[float, float],
        size: TileSize,
        with_entropy: bool,
        kept_budget: int,
    ) -> tuple[Tensor, Tensor | None]:
        kind = product_type(hidden_NH)
        bias_V = None if bias_V is None else bias_V * scales[1]
        scaled_NH, cast_VH = (hidden_NH * scales[0]).to(kind), weight_VH.to(kind)
        tiles = _Tiles(scaled_NH, cast_VH, bias_V, targets_N, bits_NW, repetition, size)
        ctx.kept = _Kept(kept_budget)
        drawn_N, norms_N, entropies_N = _sums(tiles, with_entropy, ctx.kept)
        ctx.save_for_backward(scaled_NH, cast_VH, bias_V, targets_N, bits_NW, norms_N, entropies_N)
        ctx.repetition = repetition
        ctx.scales, ctx.size, ctx.kinds = scales, size, (hidden_NH.dtype, weight_VH.dtype)
        ctx.set_materialize_grads(False)
        return drawn_N - norms_N, entropies_N if with_entropy else None

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_logprobs_N: Tensor | None, grad_entropies_N: Tensor | None) -> Any:
        hidden_NH, weight_VH, bias_V, targets_N, bits_NW, norms_N, entropies_N = ctx.saved_tensors
        tiles = _Tiles(hidden_NH, weight_VH, bias_V, targets_N, bits_NW, ctx.repetition, ctx.size)
        if grad_logprobs_N is None:
            grad_logprobs_N = torch.zeros_like(norms_N)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        d_hidden_NH = torch.zeros_like(hidden_NH, dtype=tiles.exact) if needs_hidden else None
        d_bias_V = torch.zeros_like(bias_V, dtype=tiles.exact) if needs_bias else None
        new = torch.empty_like if ctx.size.words_first else torch.zeros_like
        d_weight_VH = new(weight_VH, dtype=tiles.exact) if needs_weight else None
        for rows, words in tiles.places():
            entropy = None
            if grad_entropies_N is not None:
                entropy = entropies_N[rows], grad_entropies_N[rows]
            slope_RW = _slope(tiles, ctx.kept, (rows, words), norms_N[rows], grad_logprobs_N[rows], entropy)
            if d_bias_V is not None:
                d_bias_V[words] += slope_RW.sum(0)
            slope_RW = slope_RW.to(weight_VH.dtype)
            if d_hidden_NH is not None:
                _add_product(d_hidden_NH[rows], slope_RW, weight_VH[words])
            if d_weight_VH is not None:
                product = _set_product if ctx.size.words_first and not rows.start else _add_product
                product(d_weight_VH[words], slope_RW.T, hidden_NH[rows])
        return (
            None if d_hidden_NH is None else (d_hidden_NH * ctx.scales[0]).to(ctx.kinds[0]),
            d_weight_VH,  # in float32; autograd rounds it if the weight needs that
            None if d_bias_V is None else d_bias_V * ctx.scales[1],
            *[None] * 7,
        )


class _RowSums:
    """Running sums over tiles for a chunk of rows."""

    def __init__(self, tiles: _Tiles, rows: slice) -> None:
        self.drawn_R = torch.zeros_like(tiles.targets_N[rows], dtype=tiles.exact)
        self.highest_R = torch.full_like(self.drawn_R, LOWEST)
        self.total_R, self.weighted_R = self.drawn_R.clone(), self.drawn_R.clone()

    def add(self, tiles: _Tiles, place: tuple[slice, slice], with_entropy: bool, kept: _Kept) -> None:
        """Add a tile's logits.

        Args:
            place: the tile's rows and words.
        """
        logits_RW, excluded_RW, _ = tiles.logits(*place)
        columns_R1, inside_R = tiles.drawn(*place)
        self.drawn_R = torch.where(inside_R, logits_RW.gather(1, columns_R1)[:, 0], self.drawn_R)
        higher_R = torch.maximum(self.highest_R, logits_RW.amax(-1))
        shrunk_R = (self.highest_R - higher_R).exp()
        if with_entropy:
            powers_RW = (logits_RW - higher_R[:, None]).exp_()
            if excluded_RW is not None:
                logits_RW.masked_fill_(excluded_RW, 0.0)  # 0 · -inf is NaN
            self.weighted_R = self.weighted_R * shrunk_R + torch.linalg.vecdot(powers_RW, logits_RW)
        else:
            powers_RW = logits_RW.sub_(higher_R[:, None]).exp_()
            kept.keep(*place, powers_RW, higher_R)
        self.total_R = self.total_R * shrunk_R + powers_RW.sum(-1)
        self.highest_R = higher_R

    def results(self, with_entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the drawn tokens' logits, z, and H (zeros if not requested) of the rows."""
        norms_R = self.highest_R + self.total_R.log()
        entropies_R = norms_R - self.weighted_R / self.total_R if with_entropy else torch.zeros_like(norms_R)
        return self.drawn_R, norms_R, entropies_R


def _sums(tiles: _Tiles, with_entropy: bool, kept: _Kept) -> list[Tensor]:
    """Return the drawn tokens' logits, z, and H (zeros if not requested) of all rows."""
    chunks: dict[int, _RowSums] = {}
    for rows, words in tiles.places():
        if rows.start not in chunks:
            chunks[rows.start] = _RowSums(tiles, rows)
        chunks[rows.start].add(tiles, (rows, words), with_entropy, kept)
    parts = [chunk.results(with_entropy) for chunk in chunks.values()]
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def _slope(
    tiles: _Tiles,
    kept: _Kept,
    place: tuple[slice, slice],
    norms_R: Tensor,
    grad_logprobs_R: Tensor,
    entropy: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Return ∂L/∂logits of a tile, before any penalty.

    Args:
        place: the tile's rows and words.
        entropy: (H, ∂L/∂H) of the rows; None: the loss has no entropy.
    """
    excluded_RW = factors_RW = None
    if (powers := kept.take(*place)) is not None:
        powers_RW, highest_R = powers
        slope_RW = powers_RW.mul_(((highest_R - norms_R).exp() * -grad_logprobs_R)[:, None])
    else:
        logits_RW, excluded_RW, factors_RW = tiles.logits(*place)
        logprobs_RW = logits_RW.sub_(norms_R[:, None])
        if entropy is None:
            slope_RW = logprobs_RW.exp_().mul_(-grad_logprobs_R[:, None])
        else:
            entropies_R, grad_R = entropy
            probabilities_RW = logprobs_RW.exp()
            slope_RW = logprobs_RW.mul_(-grad_R[:, None])
            slope_RW.sub_((grad_logprobs_R + grad_R * entropies_R)[:, None]).mul_(probabilities_RW)
    columns_R1, inside_R = tiles.drawn(*place)
    slope_RW.scatter_add_(1, columns_R1, torch.where(inside_R, grad_logprobs_R, 0.0)[:, None])
    if factors_RW is not None:
        slope_RW *= factors_RW
    # excluded words, too, where 0 · -inf is NaN
    return slope_RW if excluded_RW is None else slope_RW.masked_fill_(excluded_RW, 0.0)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right to `total`, in its type."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _set_product(target: Tensor, left: Tensor, right: Tensor) -> None:
    """Write left @ right into `target`, in its type."""
    if left.dtype == target.dtype:
        torch.mm(left, right, out=target)
    else:
        target.copy_(left @ right)
