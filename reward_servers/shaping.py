"""What a part's value is worth in the sum: standardised, clipped, held against a threshold, weighted.

    raw value ──▶ (value - mean) / std ──▶ clip ──▶ 1 if >= threshold else 0 ──▶ · weight ──▶ total
        └──────▶ the logs, as it is

Nothing here remembers anything: a value counts the same in every iteration, after a resume, and in an
evaluation.
"""

from collections.abc import Mapping, Sequence
from math import fsum

from reward_servers.settings import Part


def contribution(part: Part, value: float) -> float:
    """What the part adds to the total.

    >>> contribution(Part(name="length", weight=0.5, clip=(0.0, 10.0)), 30.0)
    5.0
    >>> contribution(Part(name="rouge", threshold=0.3), 0.4)
    1.0
    """
    return part.weight * shaped(part, value)


def shaped(part: Part, value: float) -> float:
    """The value in the part's own terms, before its weight.

    >>> shaped(Part(name="length", standardize={"mean": 20.0, "std": 5.0}), 30.0)
    2.0
    """
    if part.standardize is not None:
        value = (value - part.standardize.mean) / part.standardize.std
    low, high = part.clip or (None, None)
    value = value if low is None else max(low, value)
    value = value if high is None else min(high, value)
    return value if part.threshold is None else float(value >= part.threshold)


def shares(parts: Sequence[Part], rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """How much of the reward each part makes up: Σ |contribution| over the samples, as a share of all parts'.

    The absolute value, so that a penalty has a share as well; shares are 0 to 1 and sum to 1. Nothing for a
    reward of one part, nor for rows without scores.

    Args:
        rows: each sample's raw values by label.

    >>> both = Part(name="rouge", weight=2.0), Part(name="length", weight=-0.1)
    >>> shares(both, [{"rouge": 0.5, "length": 10.0}, {"rouge": 0.25, "length": 5.0}])
    {'reward/rouge/share': 0.5, 'reward/length/share': 0.5}
    """
    if len(parts) < 2 or not rows or not all(part.label in row for part in parts for row in rows):
        return {}
    sums = {part.label: fsum(abs(contribution(part, row[part.label])) for row in rows) for part in parts}
    whole = fsum(sums.values())
    return {f"reward/{label}/share": found / whole if whole else 0.0 for label, found in sums.items()}
