"""Judge a cell by our value, the published value and both errors."""

import math
from typing import Literal

from services.runs.standard_errors import CLEAR
from services.studies.benchmarks.table import Estimate
from services.studies.comparison.differences import CERTAIN
from services.studies.reproduction.published import Published

Verdict = Literal["within", "below", "above", "not run", "not found", "not sought", "ours alone", "no error"]

MEANINGS: dict[Verdict, str] = {
    "within": f"no clear difference: by Welch's t-test at {CERTAIN:.0%} over seeds, by {CLEAR:g} standard "
    "errors over prompts, and with the published rounding",
    "below": "lower by more than that",
    "above": "higher by more than that",
    "not run": "no run has measured it",
    "not found": "the published value was looked for in vain",
    "not sought": "nobody looked for a published value",
    "ours alone": "nobody has published such a row",
    "no error": "no spread over seeds, and no error over texts: nothing to judge by",
}


def verdict(ours: Estimate | None, theirs: Published | None, *, sought: bool = True) -> Verdict:
    """Compare by `|ours - theirs| ≤ q √(error² + error²) + rounding`; without an error a source is exact.

    Args:
        sought: somebody searched for the published value; the verdict distinguishes missing values.

    >>> theirs = Published("imdb", "ppo", "sentiment", "paper", "0.602", None, "2", "", "")
    >>> verdict(Estimate(0.610, 0.004, 5), theirs)  # 0.008 apart; 2.78 · 0.004 + 0.0005 allowed
    'within'
    >>> verdict(Estimate(0.590, 0.004, 5), theirs), verdict(None, theirs)
    ('below', 'not run')
    """
    if ours is None:
        return "not run"
    if theirs is None:
        return "not found" if sought else "not sought"
    if ours.standard_error is None:
        return "no error"
    apart = ours.mean - theirs.value
    error = theirs.error or 0.0
    allowed = limit(ours, error) * math.hypot(ours.standard_error, error) + theirs.rounding
    if abs(apart) <= allowed:
        return "within"
    return "above" if apart > 0 else "below"


def limit(ours: Estimate, error: float) -> float:
    """Return the limit in standard errors: Student's quantile over seeds, CLEAR over prompts.

    The degrees of freedom are Welch and Satterthwaite's, with the published error as known:
    (s² + e²)² / (s⁴ / (n - 1)), where s is our standard error, e theirs, and n the number of our seeds.

    >>> [round(limit(Estimate(0.5, 0.01, seeds), 0.0), 2) for seeds in (2, 3, 5)]
    [12.71, 4.3, 2.78]
    >>> round(limit(Estimate(0.5, 0.01, 2), 0.02), 2), limit(Estimate(0.5, 0.01, 1, "prompts"), 0.0)
    (2.06, 2.0)
    """
    if ours.over == "prompts" or not ours.standard_error:
        return CLEAR
    from scipy.stats import t

    variance = ours.standard_error**2
    return float(t.ppf((1 + CERTAIN) / 2, (variance + error**2) ** 2 * (ours.num_runs - 1) / variance**2))
