"""Measure people's agreement by Krippendorff's alpha, or give the reason if it is undefined."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["nominal", "ordinal"]
Judgements = Mapping[str, Mapping[str, int]]  # item → rater → value


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement: alpha is 1 if perfect and 0 if by chance; None, with the reason, if undefined."""

    alpha: float | None
    why_not: str
    num_items: int
    num_shared: int  # items with several judgements; others say nothing about agreement
    num_raters: int


def krippendorff_alpha(judgements: Judgements, level: Level, values: Sequence[int]) -> Agreement:
    """Compute alpha after Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability".

    A person may skip items.

    >>> perfect = {"i": {"ann": 1, "bob": 1}, "k": {"ann": 4, "bob": 4}}
    >>> krippendorff_alpha(perfect, "ordinal", (1, 2, 3, 4, 5)).alpha
    1.0
    """
    raters = sorted({rater for by_rater in judgements.values() for rater in by_rater})
    shared = [by_rater for by_rater in judgements.values() if len(by_rater) > 1]
    why_not = ""
    if len(raters) < 2:
        why_not = "one person alone has answered"
    elif not shared:
        why_not = "no two people judged the same item"
    elif len({value for by_rater in shared for value in by_rater.values()}) == 1:
        why_not = "everybody always gave the same answer"
    alpha = None if why_not else _alpha(shared, raters, level, values)
    return Agreement(alpha, why_not, len(judgements), len(shared), len(raters))


def _alpha(
    shared: Sequence[Mapping[str, int]], raters: Sequence[str], level: Level, values: Sequence[int]
) -> float:
    import krippendorff
    import numpy as np

    table = np.array([[by_rater.get(rater, np.nan) for by_rater in shared] for rater in raters], dtype=float)
    return float(krippendorff.alpha(table, value_domain=list(values), level_of_measurement=level))
