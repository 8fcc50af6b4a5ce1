"""Keep a batch's supports: for each token a list of words, if the list is shorter than its bits.

At 152,000 words the bits of a token take 19 kB, and 10 GB for 512 responses of 1,024 tokens. A list for a
top-k of 50 takes 200 bytes, and a minimum length excludes one word. Bits are made again for one micro-batch
at a time.

    LISTED     the words that could be drawn
    EXCLUDED   the words that could not
    BITS       the bits themselves, if both lists are longer
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.batches.batching import Batch, MicroBatch
from learner.distributed.ranks import Ranks
from learner.functional.logprobs import row_chunks
from learner.functional.support import unpack_bits

LISTED, EXCLUDED, BITS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class PackedSupports:
    """Supports of _N tokens, one after another in _M numbers.

    Example: of 8 words the first token allows word 3, the second all except word 0:
    kinds_N [LISTED, EXCLUDED]   counts_N [1, 1]   words_M [3, 0]
    """

    kinds_N: Tensor
    counts_N: Tensor
    words_M: Tensor


@dataclass(frozen=True, slots=True)
class KeptSupports:
    """Supports of a batch's tokens; a token's numbers begin at `starts_BT` in `words_M`."""

    kinds_BT: Tensor
    counts_BT: Tensor
    starts_BT: Tensor
    words_M: Tensor
    vocab_size: int

    def bits(self, micro: MicroBatch) -> Tensor:
        """Return the supports of a micro-batch's tokens as (N, ⌈V/8⌉) bytes."""
        kinds_N, starts_N = micro.pick(self.kinds_BT), micro.pick(self.starts_BT)
        rows_K, places_K = _places(micro.pick(self.counts_BT))
        words_K = self.words_M[starts_N[rows_K] + places_K]
        bits_NW = words_K.new_zeros(len(kinds_N), 4 * _whole(self.vocab_size), dtype=torch.uint8)
        of_bits_K = kinds_N[rows_K] == BITS
        bits_NW.view(torch.int32)[rows_K[of_bits_K], places_K[of_bits_K]] = words_K[of_bits_K]
        rows_K, words_K = rows_K[~of_bits_K], words_K[~of_bits_K].long()
        own_bit_K = torch.ones_like(words_K, dtype=torch.uint8) << (words_K % 8).to(torch.uint8)
        bits_NW.index_put_((rows_K, words_K // 8), own_bit_K, accumulate=True)  # each word comes once
        bits_NW[kinds_N == EXCLUDED] ^= 255
        return bits_NW[:, : -(-self.vocab_size // 8)]


def pack(bits_NW: Tensor, vocab_size: int, logits_budget: int) -> PackedSupports:
    """Pack the bytes of `pack_bits`; at most `logits_budget` booleans exist at once."""
    chunks = [
        _packed(bits_NW[start:stop], vocab_size)
        for start, stop in row_chunks(len(bits_NW), vocab_size, logits_budget)
    ]
    return PackedSupports(
        torch.cat([chunk.kinds_N for chunk in chunks]),
        torch.cat([chunk.counts_N for chunk in chunks]),
        torch.cat([chunk.words_M for chunk in chunks]),
    )


def keep(
    parts: Sequence[tuple[MicroBatch, PackedSupports]], batch: Batch, vocab_size: int, ranks: Ranks
) -> KeptSupports:
    """Join the supports that each rank has computed for its tokens; all ranks get all of them."""
    kinds_BT = torch.zeros_like(batch.mask_BT, dtype=torch.uint8)
    counts_BT = torch.zeros_like(batch.mask_BT, dtype=torch.long)
    for micro, packed in parts:
        micro.place(kinds_BT, packed.kinds_N)
        micro.place(counts_BT, packed.counts_N)
    ranks.sum(kinds_BT, counts_BT)  # one rank has placed each token; the others have 0 there
    ends_BT = counts_BT.flatten().cumsum(0).view_as(counts_BT)
    starts_BT = ends_BT - counts_BT
    words_M = torch.zeros(int(counts_BT.sum()), dtype=torch.int32, device=counts_BT.device)
    for micro, packed in parts:
        rows_K, places_K = _places(packed.counts_N)
        words_M[micro.pick(starts_BT)[rows_K] + places_K] = packed.words_M
    ranks.sum(words_M)
    return KeptSupports(kinds_BT, counts_BT, starts_BT, words_M, vocab_size)


def _packed(bits_NW: Tensor, vocab_size: int) -> PackedSupports:
    allowed_NV, whole = unpack_bits(bits_NW, vocab_size), _whole(vocab_size)
    sizes_N = allowed_NV.sum(-1)
    fewest_N = torch.minimum(sizes_N, vocab_size - sizes_N)
    as_bits_N = fewest_N > whole
    kinds_N = (sizes_N > fewest_N).to(torch.uint8).masked_fill(as_bits_N, BITS)
    counts_N = fewest_N.masked_fill(as_bits_N, whole)
    rows_K, places_K = _places(counts_N)
    words_K = torch.empty(len(rows_K), dtype=torch.int32, device=bits_NW.device)
    listed_K = ~as_bits_N[rows_K]
    listed_NV = (allowed_NV ^ (kinds_N == EXCLUDED)[:, None]) & ~as_bits_N[:, None]
    words_K[listed_K] = listed_NV.nonzero()[:, 1].int()  # row by row, like the places
    padded_NW = torch.nn.functional.pad(bits_NW, (0, 4 * whole - bits_NW.shape[1]))
    words_K[~listed_K] = padded_NW.view(torch.int32)[rows_K[~listed_K], places_K[~listed_K]]
    return PackedSupports(kinds_N, counts_N, words_K)


def _places(counts_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each number its token, and its place among that token's numbers.

    >>> [places.tolist() for places in _places(torch.tensor([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    rows_K = torch.arange(len(counts_N), device=counts_N.device).repeat_interleave(counts_N)
    firsts_N = counts_N.cumsum(0) - counts_N
    return rows_K, torch.arange(len(rows_K), device=counts_N.device) - firsts_N[rows_K]


def _whole(vocab_size: int) -> int:
    """Return the 32-bit numbers that hold one token's bits."""
    return -(-vocab_size // 32)
