"""What the answers say of the algorithms: means or win rates, agreement, and whether a difference is chance.

People who judge one text are no independent samples of an algorithm: each text counts once, by the mean of
its ratings or by the majority of its votes. Standard errors and tests are over texts.
"""

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from services.crowdsourcing.agreement import Agreement, krippendorff_alpha
from services.crowdsourcing.answers import Rating, Vote
from services.crowdsourcing.pages import SCALE

Rows = list[dict[str, Any]]
LEAST = 2  # texts of an algorithm, for anything to be said of their spread


def likert_results(ratings: Sequence[Rating]) -> dict[str, Rows]:
    """Tables `means`, `agreement` and `tests`, a row for each axis and algorithm, axis, axis and pair."""
    axes = list(dict.fromkeys(axis for rating in ratings for axis in rating.scores))
    tables: dict[str, Rows] = {"means": [], "agreement": [], "tests": []}
    for axis in axes:
        of_items = by_item(ratings, axis)
        agreed = krippendorff_alpha(of_items, "ordinal", SCALE)
        tables["agreement"].append({"axis": axis, **_agreement_row(agreed)})
        by_algorithm = _text_means(ratings, of_items)
        for algorithm, means in by_algorithm.items():
            tables["means"].append(
                {
                    "axis": axis,
                    "algorithm": algorithm,
                    "mean": statistics.fmean(means),
                    "standard_error": standard_error(means),
                    "num_texts": len(means),
                }
            )
        tables["tests"] += _tests(axis, by_algorithm)
    return tables


def pairwise_results(votes: Sequence[Vote]) -> dict[str, Rows]:
    """Tables `win_rates`, a row for each algorithm, `pairs` and `agreement`, a row for each two of them."""
    pairs = sorted({vote.pair for vote in votes})
    rows, agreement = [], []
    for pair in pairs:
        items = list(_votes_by_item([vote for vote in votes if vote.pair == pair]).values())
        rows.append(_pair_row(pair, items))
        agreement.append({"pair": ", ".join(pair), **_agreement_row(_agreement_on(pair[0], items))})
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = adjusted
    shares: dict[str, list[float]] = {}
    for item_votes in _votes_by_item(votes).values():
        for algorithm in item_votes[0].pair:
            won = [float(vote.winner == algorithm) for vote in item_votes]
            shares.setdefault(algorithm, []).append(statistics.fmean(won))
    win_rates = [
        {
            "algorithm": algorithm,
            "win_rate": statistics.fmean(shares[algorithm]),
            "standard_error": standard_error(shares[algorithm]),
            "num_pairs": len(shares[algorithm]),
        }
        for algorithm in sorted(shares)
    ]
    return {"win_rates": win_rates, "pairs": rows, "agreement": agreement}


def by_item(ratings: Sequence[Rating], axis: str) -> dict[str, dict[str, int]]:
    """Everybody's value for each item that has one."""
    found: dict[str, dict[str, int]] = {}
    for rating in ratings:
        if axis in rating.scores:
            found.setdefault(rating.item, {})[rating.rater] = rating.scores[axis]
    return found


def standard_error(values: Sequence[float]) -> float | None:
    """
    >>> round(standard_error([1.0, 3.0, 5.0]), 6)  # variance (4 + 0 + 4) / 2 = 4, so 2 / √3
    1.154701
    >>> standard_error([1.0]) is None
    True
    """
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) >= LEAST else None


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) correction: the k-th smallest of m is multiplied by m − k + 1, and order is kept.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _text_means(
    ratings: Sequence[Rating], of_items: Mapping[str, Mapping[str, int]]
) -> dict[str, list[float]]:
    """For each algorithm, by name, the mean rating of each of its texts."""
    writer = {rating.item: rating.algorithm for rating in ratings}
    found: dict[str, list[float]] = {}
    for item, given in of_items.items():
        found.setdefault(writer[item], []).append(statistics.fmean(given.values()))
    return dict(sorted(found.items()))


def _tests(axis: str, by_algorithm: Mapping[str, Sequence[float]]) -> Rows:
    """One-way ANOVA over all algorithms, then Tukey's honestly significant difference for each two."""
    # Of a single text nothing is known of the spread within its algorithm: the others are compared.
    names = [name for name, means in by_algorithm.items() if len(means) >= LEAST]
    groups = [by_algorithm[name] for name in names]
    if len(names) < 2 or all(len(set(group)) == 1 for group in groups):
        return []
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant groups
        anova, tukey = stats.f_oneway(*groups), stats.tukey_hsd(*groups)
    rows: Rows = [_test_row(axis, "ANOVA", "all", None, float(anova.pvalue))]
    for first in range(len(names)):
        for second in range(first + 1, len(names)):
            compared = f"{names[first]} − {names[second]}"
            difference, p = float(tukey.statistic[first, second]), float(tukey.pvalue[first, second])
            rows.append(_test_row(axis, "Tukey HSD", compared, difference, p))
    return rows


def _test_row(axis: str, test: str, compared: str, difference: float | None, p: float) -> dict[str, Any]:
    return {"axis": axis, "test": test, "compared": compared, "difference": difference, "p": p}


def _agreement_row(agreed: Agreement) -> dict[str, Any]:
    return {
        "alpha": agreed.alpha,
        "num_items": agreed.num_items,
        "num_shared": agreed.num_shared,
        "num_raters": agreed.num_raters,
        "note": agreed.why_not,
    }


def _votes_by_item(votes: Sequence[Vote]) -> dict[str, list[Vote]]:
    found: dict[str, list[Vote]] = {}
    for vote in votes:
        found.setdefault(vote.item, []).append(vote)
    return found


def _pair_row(pair: tuple[str, str], items: Sequence[Sequence[Vote]]) -> dict[str, Any]:
    """A two-sided sign test over items, each decided by its majority; a tie decides for neither."""
    from scipy import stats

    first, second = pair
    ahead = [sum(1 if vote.winner == first else -1 for vote in given) for given in items]
    won, lost = sum(lead > 0 for lead in ahead), sum(lead < 0 for lead in ahead)
    given_to_first = [vote.winner == first for given in items for vote in given]
    return {
        "first": first,
        "second": second,
        "first_won": won,
        "second_won": lost,
        "ties": len(ahead) - won - lost,
        "votes_for_first": sum(given_to_first) / len(given_to_first),
        "p": float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0,
    }


def _agreement_on(first: str, items: Sequence[Sequence[Vote]]) -> Agreement:
    judgements = {given[0].item: {vote.rater: int(vote.winner == first) for vote in given} for given in items}
    return krippendorff_alpha(judgements, "nominal", (0, 1))
