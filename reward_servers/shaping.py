"""Compute a part's contribution to the sum: standardise, clip, compare with a threshold, weight.

    raw value ──▶ (value - mean) / std ──▶ clip ──▶ 1 if >= threshold else 0 ──▶ · weight ──▶ total
        └──────▶ the logs, unchanged

Nothing here has a state, so a value counts equally in every iteration, after a resume, and in an evaluation.
"""

from collections.abc import Mapping, Sequence
from math import fsum

from reward_servers.settings import Part


def contribution(part: Part, value: float) -> float:
    """Return the part's contribution to the total.

    >>> contribution(Part(name="length", weight=0.5, clip=(0.0, 10.0)), 30.0)
    5.0
    >>> contribution(Part(name="rouge", threshold=0.3), 0.4)
    1.0
    """
    return part.weight * shaped(part, value)


def shaped(part: Part, value: float) -> float:
    """Return the value after standardization, clipping and threshold, before its weight.

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
    """Return each part's share of the reward: its Σ |contribution| over the samples ÷ all parts' sum.

    With absolute values a penalty has a share, too. Shares are 0 to 1 and sum to 1. A reward of one part, or
    without scores, has no shares. A part contributes 0 to samples that it does not score.

    Args:
        rows: each sample's raw values by label.

    >>> both = Part(name="rouge", weight=2.0), Part(name="length", weight=-0.1)
    >>> shares(both, [{"rouge": 0.5, "length": 10.0}, {"rouge": 0.25, "length": 5.0}])
    {'reward/rouge/share': 0.5, 'reward/length/share': 0.5}
    """
    if len(parts) < 2 or not all(any(part.label in row for row in rows) for part in parts):
        return {}
    sums = {
        part.label: fsum(abs(contribution(part, row[part.label])) for row in rows if part.label in row)
        for part in parts
    }
    whole = fsum(sums.values())
    return {f"reward/{label}/share": part_sum / whole if whole else 0.0 for label, part_sum in sums.items()}
