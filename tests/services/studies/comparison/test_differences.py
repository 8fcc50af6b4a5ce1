"""Differences between groups: in pairs of prompts, or over seeds beside scipy's test."""

import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from scipy import stats

from services.studies.comparison.differences import Difference, LastEvaluation, difference, difference_table

EASE = [0.1, 0.5, 0.9, 0.3]  # of four prompts


def evaluation(rewards: Sequence[float], **metrics: float) -> LastEvaluation:
    rows: list[dict[str, Any]] = [
        {"sample_id": f"p/{place}", "prompt_text": "a", "reward": reward}
        for place, reward in enumerate(rewards)
    ]
    return LastEvaluation(20, {"reward/mean": statistics.fmean(rewards), **metrics}, rows)


def test_two_runs_are_compared_prompt_by_prompt() -> None:
    better = [0.2, 0.58, 1.0, 0.42]  # by 0.10, 0.08, 0.10, 0.12
    change = difference("reward/mean", [evaluation(EASE)], [evaluation(better)])
    assert change.value == pytest.approx(0.1)
    assert change.error == pytest.approx(statistics.stdev([0.1, 0.08, 0.1, 0.12]) / 2)
    assert change.direction == 1
    assert difference("reward/mean", [evaluation(better)], [evaluation(EASE)]).direction == -1


def test_a_difference_within_its_error_has_no_direction() -> None:
    assert difference("reward/mean", [evaluation(EASE)], [evaluation(EASE[::-1])]).direction == 0
    assert Difference(0.3, None).direction == 0


@pytest.mark.parametrize(
    "after", [[0.62, 0.71, 0.65], [0.52, 0.58, 0.61], [0.5, 0.9], [0.55, 0.57, 0.56, 0.58, 0.6]]
)
def test_several_seeds_are_compared_by_welchs_test(after: list[float]) -> None:
    before = [0.5, 0.53, 0.48]
    sides = [[evaluation([value] * 4) for value in side] for side in (before, after)]
    change = difference("reward/mean", *sides)
    test = stats.ttest_ind(after, before, equal_var=False)
    assert change.error is not None and change.value / change.error == pytest.approx(test.statistic)
    assert (change.direction != 0) == (test.pvalue < 0.05)


def test_seeds_without_a_spread_are_no_fault() -> None:
    same = [evaluation([0.5] * 4)] * 2
    assert difference("reward/mean", same, same).direction == 0
    assert difference("reward/mean", same, [evaluation([0.6] * 4)] * 2).direction == 1


@pytest.mark.parametrize("sign", [1, -1])
def test_seeds_beside_a_single_run_add_their_spread_to_the_error_over_prompts(sign: int) -> None:
    """Pooled texts hid the spread: an error of 0 called a difference clear that one more seed could undo."""
    two = [evaluation([value + shift for value in EASE]) for shift in (0.0, 0.2)]
    sides = [[evaluation(EASE)], two][::sign]
    change = difference("reward/mean", *sides)
    # The prompts' differences are all alike, so the error is that of the means 0.45 and 0.65 over seeds.
    assert (change.value, change.error) == (pytest.approx(sign * 0.1), pytest.approx(0.1))
    assert change.limit == pytest.approx(12.7, abs=0.1) and change.direction == 0  # one degree of freedom


def test_seeds_that_agree_beside_a_single_run_are_compared_over_prompts() -> None:
    better = [0.2, 0.58, 1.0, 0.42]
    change = difference("reward/mean", [evaluation(EASE)], [evaluation(better)] * 3)
    assert change.error == pytest.approx(statistics.stdev([0.1, 0.08, 0.1, 0.12]) / 2)
    assert change.direction == 1


def test_the_table_has_a_row_for_each_metric_and_its_errors() -> None:
    first = evaluation(EASE, **{"pass@4": 0.5, "pass@4/standard_error": 0.03, "baseline/random/pass@4": 0.1})
    second = evaluation(EASE, **{"pass@4": 0.75, "pass@4/standard_error": 0.04, "bleu": 0.2})
    table = difference_table("Test", [[first], [second]])
    assert table is not None and table.epochs == ("20", "20")
    cells = dict(table.rows)
    assert list(cells) == ["reward/mean", "pass@4", "bleu"]
    before, after = cells["pass@4"]
    assert before is not None and (before.value, before.error, before.difference) == (0.5, 0.03, None)
    assert after is not None and after.difference == Difference(0.25, 0.05)  # √(0.03² + 0.04²)
    alone, other = cells["bleu"]
    assert alone is None and other is not None and other.difference is None
    assert difference_table("Test", [[], []]) is None
