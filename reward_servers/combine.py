"""Combine several rewards' answers into scores, and several metrics' values into one table."""

import math
from collections.abc import Mapping, Sequence

from contracts.scores import Answer, Grade, MetricValue, Score, Term
from reward_servers.settings import Part
from reward_servers.shaping import contribution, shaped


def weighted_sum(parts: Sequence[Part], answers: Sequence[Sequence[Answer]]) -> list[Score]:
    """Return one score for each sample: Σ weight · shaped part; no total if any part failed.

    A part that does not score a sample is left out of its sum and its parts. A sample without any score has
    no total. A part that scores places of the text counts with their sum.

    Args:
        parts: the rewards, P of them.
        answers: (P, B) for B samples.

    >>> both = Part(name="rouge", weight=0.5), Part(name="length", weight=0.25)
    >>> weighted_sum(both, [[(0.4, None)], [(8.0, None)]])  # 0.5 · 0.4 + 0.25 · 8
    [Score(total=2.2, parts={'rouge': 0.4, 'length': 8.0}, error=None, earned=(), grades={})]
    """
    return [_score(parts, of_sample) for of_sample in zip(*answers, strict=True)]


def _score(parts: Sequence[Part], answers: Sequence[Answer]) -> Score:
    scores = {part.label: score for part, (score, _) in zip(parts, answers, strict=True) if score is not None}
    grades = {label: score for label, score in scores.items() if isinstance(score, Grade)}
    totals = {label: score.total if isinstance(score, Grade) else score for label, score in scores.items()}
    values = {label: total for label, total in totals.items() if total is not None}
    errors = [error for _, error in answers if error is not None]
    if errors:
        return Score(total=None, parts=values, error="; ".join(errors), grades=grades)
    if not values:
        silent = ", ".join(part.label for part in parts)
        error = f"reward {silent}: returned None, and no other reward scored it"
        return Score(total=None, error=error, grades=grades)
    scored = [part for part in parts if part.label in values]
    total = sum(contribution(part, values[part.label]) for part in scored)
    if not math.isfinite(total):
        shown = ", ".join(f"{part.label} {values[part.label]:g} · {part.weight:g}" for part in scored)
        error = f"the weighted sum is {total}, no finite number: {shown}"
        return Score(total=None, parts=values, error=error, grades=grades)
    terms = {part.label: Term(shaped(part, values[part.label]), part.weight) for part in scored}
    return Score(total, values, None, _earned(scored, values, grades), grades, terms)


def _earned(
    parts: Sequence[Part], values: Mapping[str, float], grades: Mapping[str, Grade]
) -> tuple[Grade, ...]:
    """Return each part's contributions at its places; () if all are earned at the end."""
    if all(grade.unit == "text" for grade in grades.values()):
        return ()
    return tuple(
        grades[part.label].times(part.weight)
        if part.label in grades and grades[part.label].unit != "text"
        else Grade(contribution(part, values[part.label]))
        for part in parts
    )


def union(
    metrics: Sequence[Part],
    by_metric: Sequence[Mapping[str, MetricValue]],
    before: Mapping[str, MetricValue] | None = None,
) -> dict[str, MetricValue]:
    """Return all values by key; if a second metric gives the same key, its value gets `key/label`.

    Args:
        before: values of other metrics, which keep their keys.

    >>> both = Part(name="length"), Part(name="length", label="again")
    >>> value = {"length/mean_words": MetricValue(corpus=3.0)}
    >>> list(union(both, (value, value)))
    ['length/mean_words', 'length/mean_words/again']
    """
    values = dict(before or {})
    for part, of_part in zip(metrics, by_metric, strict=True):
        values |= {f"{key}/{part.label}" if key in values else key: value for key, value in of_part.items()}
    return values
