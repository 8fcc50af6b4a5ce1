"""Tests of registered claims: two arms' seeds, their difference, its interval, its effect size, a verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance
from typing import Literal

from benchmarks.orderings.registry import Claim
from services.studies.comparison.differences import welch_freedom

Verdict = Literal["as registered", "not as registered", "undecided", "not run"]
LEVEL = 0.05  # level at which all claims of one ordering are tested together


@dataclass(frozen=True, slots=True)
class Judged:
    """Difference of two arms' means, with half the width of its interval, and Hedges' g.

    Example: `Judged(0.2, 0.05, 2.9, "as registered")`
    """

    difference: float
    half_width: float
    effect: float | None  # None: neither arm has a spread
    verdict: Verdict


def judged(claim: Claim, first: Sequence[float], second: Sequence[float], num_claims: int) -> Judged:
    """Test a claim by Welch's interval (1947, Biometrika 34, 28-35) at LEVEL / num_claims, two-sided.

    >>> judged(Claim(above=("a", "b"), measure="test"), [0.9, 1.0, 1.1], [0.4, 0.5, 0.6], 1).verdict
    'as registered'
    """
    difference = fmean(first) - fmean(second)
    width = half_width(first, second, LEVEL / num_claims)
    low, high = difference - width, difference + width
    verdict: Verdict = "undecided"
    if claim.margin is not None:
        if max(-low, high) <= claim.margin:
            verdict = "as registered"
        elif low > claim.margin or high < -claim.margin:
            verdict = "not as registered"
    elif low > 0:
        verdict = "as registered"
    elif high < 0:
        verdict = "not as registered"
    return Judged(difference, width, hedges_g(first, second), verdict)


def half_width(first: Sequence[float], second: Sequence[float], level: float) -> float:
    """Return half the width of the interval of mean(first) - mean(second) that misses it with `level`.

    >>> round(half_width([0.1, 0.2, 0.3], [0.4, 0.5, 0.6], 0.05), 4)  # 2.776 · √(2 · 0.01 / 3)
    0.2267
    """
    from scipy.stats import t

    error = math.sqrt(sum(variance(values) / len(values) for values in (first, second)))
    return error * float(t.ppf(1 - level / 2, welch_freedom(first, second)))


def hedges_g(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the difference in pooled standard deviations, corrected for few runs (Hedges 1981, eq. 6e).

    >>> round(hedges_g([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), 2)  # -3 / 1 · (1 - 3 / (4 · 4 - 1))
    -2.4
    """
    freedom = len(first) + len(second) - 2
    squares = ((len(values) - 1) * variance(values) for values in (first, second))
    pooled = math.sqrt(math.fsum(squares) / freedom)
    return (fmean(first) - fmean(second)) / pooled * (1 - 3 / (4 * freedom - 1)) if pooled else None


def interval_of_mean(values: Sequence[float]) -> float:
    """Return half the width of Student's 95 % interval of a mean.

    >>> round(interval_of_mean([0.1, 0.2, 0.3]), 4)  # 4.303 · 0.1 / √3
    0.2484
    """
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
