"""Compute means or win rates of algorithms, agreement between people, and tests of differences.

Several judgements of one text are not independent, so each text counts once, with its mean rating or its
majority vote. Texts of one prompt are not independent either, so standard errors and tests are over prompts.
"""

import statistics
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from services.runs.standard_errors import standard_error
from services.studies.crowdsourcing.agreement import Agreement, krippendorff_alpha
from services.studies.crowdsourcing.answers import Rating, Vote
from services.studies.crowdsourcing.pages import SCALE

Rows = list[dict[str, Any]]
LEAST = 2  # prompts of an algorithm, to estimate their spread
Means = tuple[list[float], list[str]]  # each text's mean rating, and its prompt


def likert_results(ratings: Sequence[Rating]) -> dict[str, Rows]:
    """Return tables: `means` by axis and algorithm, `agreement` by axis, `tests` by axis and pair."""
    axes = list(dict.fromkeys(axis for rating in ratings for axis in rating.scores))
    tables: dict[str, Rows] = {"means": [], "agreement": [], "tests": []}
    for axis in axes:
        of_items = by_item(ratings, axis)
        agreed = krippendorff_alpha(of_items, "ordinal", SCALE)
        tables["agreement"].append({"axis": axis, **_agreement_row(agreed)})
        by_algorithm = _text_means(ratings, of_items)
        for algorithm, (means, prompts) in by_algorithm.items():
            tables["means"].append(
                {
                    "axis": axis,
                    "algorithm": algorithm,
                    "mean": statistics.fmean(means),
                    "standard_error": standard_error(means, prompts),
                    "num_texts": len(means),
                    "num_prompts": len(set(prompts)),
                }
            )
        tables["tests"] += _tests(axis, by_algorithm)
    return tables


def pairwise_results(votes: Sequence[Vote]) -> dict[str, Rows]:
    """Return tables: `win_rates` by algorithm, `pairs` and `agreement` by pair of algorithms."""
    pairs = sorted({vote.pair for vote in votes})
    rows, agreement = [], []
    for pair in pairs:
        items = list(_votes_by_item([vote for vote in votes if vote.pair == pair]).values())
        rows.append(_pair_row(pair, items))
        agreement.append({"pair": ", ".join(pair), **_agreement_row(_agreement_on(pair[0], items))})
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = adjusted
    shares: dict[str, Means] = {}
    for item_votes in _votes_by_item(votes).values():
        for algorithm in item_votes[0].pair:
            won, prompts = shares.setdefault(algorithm, ([], []))
            won.append(statistics.fmean(float(vote.winner == algorithm) for vote in item_votes))
            prompts.append(_prompt_of(item_votes[0]))
    win_rates = [
        {
            "algorithm": algorithm,
            "win_rate": statistics.fmean(won),
            "standard_error": standard_error(won, prompts),
            "num_pairs": len(won),
            "num_prompts": len(set(prompts)),
        }
        for algorithm, (won, prompts) in sorted(shares.items())
    ]
    return {"win_rates": win_rates, "pairs": rows, "agreement": agreement}


def by_item(ratings: Sequence[Rating], axis: str) -> dict[str, dict[str, int]]:
    """Return each item's values on an axis, by person."""
    scores: dict[str, dict[str, int]] = {}
    for rating in ratings:
        if axis in rating.scores:
            scores.setdefault(rating.item, {})[rating.rater] = rating.scores[axis]
    return scores


def holm(p_values: Sequence[float]) -> list[float]:
    """Apply Holm's (1979) correction: multiply the k-th smallest of m by m − k + 1, and keep the order.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _text_means(ratings: Sequence[Rating], of_items: Mapping[str, Mapping[str, int]]) -> dict[str, Means]:
    """Return the mean rating of each text, by algorithm."""
    about = {rating.item: rating for rating in ratings}
    by_algorithm: dict[str, Means] = {}
    for item, by_rater in of_items.items():
        means, prompts = by_algorithm.setdefault(about[item].algorithm, ([], []))
        means.append(statistics.fmean(by_rater.values()))
        prompts.append(_prompt_of(about[item]))
    return dict(sorted(by_algorithm.items()))


def _prompt_of(answer: Rating | Vote) -> str:
    """Return the answer's prompt; if unknown, treat each item as a separate prompt."""
    return answer.prompt or answer.item


def _prompt_means(means: Means) -> list[float]:
    """Return the mean of each prompt's texts.

    >>> _prompt_means(([1.0, 3.0, 5.0], ["p", "p", "q"]))
    [2.0, 5.0]
    """
    by_prompt: dict[str, list[float]] = {}
    for mean, prompt in zip(*means, strict=True):
        by_prompt.setdefault(prompt, []).append(mean)
    return [statistics.fmean(text_means) for text_means in by_prompt.values()]


def _tests(axis: str, by_algorithm: Mapping[str, Means]) -> Rows:
    """Run a one-way ANOVA over all algorithms, then Tukey's honestly significant difference for each pair.

    Both compare the means of prompts.
    """
    by_prompts = {name: _prompt_means(means) for name, means in by_algorithm.items()}
    # Omit an algorithm with a single prompt, because it has no spread.
    names = [name for name, means in by_prompts.items() if len(means) >= LEAST]
    groups = [by_prompts[name] for name in names]
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
    items: dict[str, list[Vote]] = {}
    for vote in votes:
        items.setdefault(vote.item, []).append(vote)
    return items


def _pair_row(pair: tuple[str, str], items: Sequence[Sequence[Vote]]) -> dict[str, Any]:
    """Run a two-sided sign test over prompts; most votes decide an item, most items a prompt.

    A tie counts for neither.
    """
    from scipy import stats

    first, second = pair
    ahead: list[int] = []  # 1, 0 or -1 for each item
    of_prompts: Counter[str] = Counter()
    for votes in items:
        lead = sum(1 if vote.winner == first else -1 for vote in votes)
        ahead.append((lead > 0) - (lead < 0))
        of_prompts[_prompt_of(votes[0])] += ahead[-1]
    won, lost = (sum(sign * lead > 0 for lead in of_prompts.values()) for sign in (1, -1))
    given_to_first = [vote.winner == first for votes in items for vote in votes]
    return {
        "first": first,
        "second": second,
        "first_won": ahead.count(1),
        "second_won": ahead.count(-1),
        "ties": ahead.count(0),
        "num_prompts": len(of_prompts),
        "votes_for_first": sum(given_to_first) / len(given_to_first),
        "p": float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0,
    }


def _agreement_on(first: str, items: Sequence[Sequence[Vote]]) -> Agreement:
    judgements = {votes[0].item: {vote.rater: int(vote.winner == first) for vote in votes} for votes in items}
    return krippendorff_alpha(judgements, "nominal", (0, 1))
