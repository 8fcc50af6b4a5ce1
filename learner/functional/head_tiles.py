"""Sizes and order of the tiles in which a head's logits are computed: some rows by some words.

A CPU takes a few rows and all words before the next rows, so that a tile fits its cache. A GPU takes a few
words and all rows before the next words, so that it writes each part of the weight's gradient once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

MOST_ROWS = 1024  # limit of a tile's rows on a CPU; above it, reading the weights again costs little
CACHED = 2**21  # numbers of a tile on a CPU: 8 MB, so that the next pass over them finds them in the cache
LEAST_WORDS = 1024  # least words of a tile on a GPU, which takes fewer rows rather than narrower products
ALIGNED = 64  # alignment in words; a GPU reads fastest if each row begins at a multiple
WORDS_FIRST = ("cuda",)  # types of devices that take all rows before the next words


@dataclass(frozen=True, slots=True)
class TileSize:
    """Most rows and words of a tile, and the order of tiles. Words are a multiple of 8, for bits of supports.

    Example: `TileSize(rows=12288, words=8192, words_first=True)`: all rows of 8,192 words come first.
    """

    rows: int
    words: int
    words_first: bool

    def places(self, num_rows: int, vocab_size: int) -> Iterator[tuple[slice, slice]]:
        """Yield the rows and words of each tile; without rows, yield one empty chunk."""
        chunks, words = slices(max(num_rows, 1), self.rows), slices(vocab_size, self.words)
        if self.words_first:
            return ((rows, tile) for tile in words for rows in chunks)
        return ((rows, tile) for rows in chunks for tile in words)


def tile_size(device: str, num_rows: int, vocab_size: int, budget: int) -> TileSize:
    """Return the tile size for a type of device: at most `budget` numbers, but at least 8.

    >>> tile_size("cpu", 12288, 151936, 2**24)
    TileSize(rows=1024, words=2048, words_first=False)
    >>> tile_size("cuda", 12288, 151936, 6 * 2**24)
    TileSize(rows=12288, words=8192, words_first=True)
    """
    if device in WORDS_FIRST:
        rows = max(1, min(num_rows, budget // min(LEAST_WORDS, (vocab_size + 7) // 8 * 8)))
        words = min(budget // rows, vocab_size + ALIGNED - 1)
        return TileSize(rows, max(8, words // ALIGNED * ALIGNED or words // 8 * 8), words_first=True)
    budget = min(budget, CACHED)
    rows = max(1, min(num_rows, MOST_ROWS, budget // 8))
    return TileSize(rows, max(8, min(budget // rows, vocab_size + 7) // 8 * 8), words_first=False)


def slices(count: int, size: int) -> list[slice]:
    """Return slices of at most `size` that cover `count`.

    >>> slices(5, 3)
    [slice(0, 3, None), slice(3, 6, None)]
    """
    return [slice(start, start + size) for start in range(0, count, size)]
