"""Batches of texts of similar length, so that padding is small and memory suffices."""

from collections.abc import Sequence


def batches_by_length(lengths: Sequence[int], tokens_per_batch: int) -> list[list[int]]:
    """Return batches of indices, longest text first: texts · longest length is at most `tokens_per_batch`.

    A text longer than that makes a batch alone.

    >>> batches_by_length([2, 9, 3, 3], tokens_per_batch=6)
    [[1], [2, 3], [0]]
    """
    batches: list[list[int]] = []
    longest = 0
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if batches and (len(batches[-1]) + 1) * longest <= tokens_per_batch:
            batches[-1].append(place)
            continue
        batches.append([place])
        longest = lengths[place]
    return batches
