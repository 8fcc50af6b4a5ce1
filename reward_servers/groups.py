"""Groups of samples: all answers to one prompt, which some rewards must see together."""

from collections.abc import Sequence

from contracts.scores import Sample


def by_group(samples: Sequence[Sample]) -> list[list[int]]:
    """Return the places of each group's samples, in the order of the groups' first samples.

    >>> by_group([Sample("a", group="p"), Sample("b", group="q"), Sample("c", group="p")])
    [[0, 2], [1]]
    """
    found: dict[str, list[int]] = {}
    for place, sample in enumerate(samples):
        found.setdefault(sample.group, []).append(place)
    return list(found.values())
