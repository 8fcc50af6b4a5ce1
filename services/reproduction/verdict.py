"""Verdict on a cell: our value beside the published one, by both errors."""

import math
from typing import Literal

from services.benchmarks.table import Estimate
from services.reproduction.published import Published
from services.runs.standard_errors import CLEAR

Verdict = Literal["within", "below", "above", "not run", "not found", "ours alone", "no error"]

MEANINGS: dict[Verdict, str] = {
    "within": f"at most {CLEAR:g} standard errors of the difference, and the published rounding, apart",
    "below": "lower by more than that",
    "above": "higher by more than that",
    "not run": "no run has measured it",
    "not found": "no published value was found",
    "ours alone": "nobody has published such a row",
    "no error": "no spread over seeds, and no error over texts: nothing to judge by",
}


def verdict(ours: Estimate | None, theirs: Published | None) -> Verdict:
    """Compare by `|ours - theirs| ≤ 2 √(error² + error²) + rounding`; without an error a source is exact.

    >>> theirs = Published("imdb", "ppo", "sentiment", "paper", "0.602", None, "2", "", "")
    >>> verdict(Estimate(0.610, 0.004, 5), theirs)  # 0.008 apart, 0.0085 allowed
    'within'
    >>> verdict(Estimate(0.590, 0.004, 5), theirs), verdict(None, theirs)
    ('below', 'not run')
    """
    if ours is None:
        return "not run"
    if theirs is None:
        return "not found"
    if ours.standard_error is None:
        return "no error"
    apart = ours.mean - theirs.value
    allowed = CLEAR * math.hypot(ours.standard_error, theirs.error or 0.0) + theirs.rounding
    if abs(apart) <= allowed:
        return "within"
    return "above" if apart > 0 else "below"
