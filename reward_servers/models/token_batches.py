"""Texts of like length together, so that little of a batch is padding and none outgrows the memory."""

from collections.abc import Sequence


def batches_by_length(lengths: Sequence[int], tokens_per_batch: int) -> list[list[int]]:
    """Places of texts, longest first; number of texts · longest text is at most `tokens_per_batch`.

    A text longer than that is a batch of its own.

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
