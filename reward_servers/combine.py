"""Combination of several rewards' answers into scores, and of several metrics' values into one table."""

import math
from collections.abc import Mapping, Sequence

from contracts.scores import Answer, MetricValue, Score
from reward_servers.settings import Part
from reward_servers.shaping import contribution


def weighted_sum(parts: Sequence[Part], answers: Sequence[Sequence[Answer]]) -> list[Score]:
    """Return one score for each sample: Σ weight · shaped part; no total if any part failed.

    A part that says nothing about a sample is left out of its sum, and of its parts. A sample about which
    no part says anything has no total.

    Args:
        parts: the rewards, P of them.
        answers: (P, B) for B samples.

    >>> both = Part(name="rouge", weight=0.5), Part(name="length", weight=0.25)
    >>> weighted_sum(both, [[(0.4, None)], [(8.0, None)]])  # 0.5 · 0.4 + 0.25 · 8
    [Score(total=2.2, parts={'rouge': 0.4, 'length': 8.0}, error=None)]
    """
    return [_score(parts, of_sample) for of_sample in zip(*answers, strict=True)]


def _score(parts: Sequence[Part], answers: Sequence[Answer]) -> Score:
    values = {part.label: value for part, (value, _) in zip(parts, answers, strict=True) if value is not None}
    errors = [error for _, error in answers if error is not None]
    if errors:
        return Score(total=None, parts=values, error="; ".join(errors))
    if not values:
        silent = ", ".join(part.label for part in parts)
        return Score(total=None, error=f"reward {silent}: returned None, and no other reward scored it")
    found = [part for part in parts if part.label in values]
    total = sum(contribution(part, values[part.label]) for part in found)
    if not math.isfinite(total):
        shown = ", ".join(f"{part.label} {values[part.label]:g} · {part.weight:g}" for part in found)
        return Score(
            total=None, parts=values, error=f"the weighted sum is {total}, no finite number: {shown}"
        )
    return Score(total=total, parts=values)


def union(metrics: Sequence[Part], found: Sequence[Mapping[str, MetricValue]]) -> dict[str, MetricValue]:
    """Return all values by key; if a second metric gives the same key, its value gets `key/label`.

    >>> both = Part(name="length"), Part(name="length", label="again")
    >>> value = {"length/mean_words": MetricValue(corpus=3.0)}
    >>> list(union(both, (value, value)))
    ['length/mean_words', 'length/mean_words/again']
    """
    values: dict[str, MetricValue] = {}
    for part, of_part in zip(metrics, found, strict=True):
        values |= {f"{key}/{part.label}" if key in values else key: value for key, value in of_part.items()}
    return values
