"""Numbers of several texts per prompt: beside enumerated subsets and resampled prompts, votes by hand."""

import itertools
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.studies.arithmetic_report import brute_force
from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.graders.math import Math
from services.config.evaluation_settings import EvaluationSettings
from services.training.loop.statistics.at_k import AtK, majority, pass_at_k, sizes

PASSED = st.lists(st.booleans(), min_size=1, max_size=9)


def rows_of(rewards: list[list[float]]) -> tuple[list[dict[str, Any]], list[int], list[str]]:
    """Rows of prompts' rewards, the group and the prompt of each."""
    pairs = [(reward, place) for place, group in enumerate(rewards) for reward in group]
    groups = [place for _, place in pairs]
    return [{"reward": reward} for reward, _ in pairs], groups, [f"p/{place}" for place in groups]


@given(PASSED, st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_passing_text(
    passed: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(passed)))
    subsets = [any(chosen) for chosen in itertools.combinations(passed, k)]
    assert pass_at_k(len(passed), sum(passed), k) == pytest.approx(statistics.fmean(subsets))


@pytest.mark.parametrize("wrong", [(3, 1, 4), (3, 4, 2), (3, 1, 0), (0, 0, 1)])
def test_pass_at_k_needs_k_texts(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected 1 ≤ k ≤ n"):
        pass_at_k(*wrong)


@pytest.mark.parametrize(
    ("answers", "passed", "expected"),
    [
        (["7", "7", "5", "5", "7"], [1, 1, 0, 0, 1], 1.0),  # three votes against two
        (["7", "5", "5", None], [1, 0, 0, 0], 0.0),  # one right text is outvoted, though pass@4 is 1
        (["7", "7", "5", "5", "3"], [1, 1, 0, 0, 0], 0.5),  # a tie of two
        (["7", "5", "3"], [1, 0, 0], 1 / 3),  # a tie of three
        ([None, None, "7"], [0, 0, 1], 1.0),  # who does not answer does not vote
        ([None, None], [1, 1], 0.0),
        (["7", "7", "7"], [1, 1, 0], 2 / 3),  # the same answer, once in a form that fails
    ],
)
def test_a_vote_by_hand(answers: list[str | None], passed: list[int], expected: float) -> None:
    assert majority(answers, [bool(ok) for ok in passed]) == pytest.approx(expected)


def test_all_numbers_of_two_prompts_by_hand() -> None:
    rows, groups, prompts = rows_of([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]])
    answers = ["7", "5", "5", "7", "2", None, "2", "9"]
    metrics = AtK(4)(rows, groups, prompts, answers)
    # pass@2: 1 - C(2,2)/C(4,2) = 5/6, and 1 - C(3,2)/6 = 1/2. Votes: 7 and 5 tie; then 2, which is wrong.
    # Errors: half the difference of the two prompts' numbers, √(2 · 2 · (d/2)²) / 2 = d / 2.
    expected = {
        "mean@4": ((2 + 1) / 8, (0.5 - 0.25) / 2),
        "pass@4": (1.0, 0.0),
        "maj@4": (0.25, 0.25),
        "pass@1": (3 / 8, 0.125),
        "pass@2": ((5 / 6 + 1 / 2) / 2, (5 / 6 - 1 / 2) / 2),
    }
    assert metrics == {
        key: pytest.approx(value)
        for name, (mean, error) in expected.items()
        for key, value in ((name, mean), (f"{name}/standard_error", error))
    }
    assert list(metrics)[::2] == ["mean@4", "pass@1", "pass@2", "pass@4", "maj@4"]
    assert [row["answer"] for row in rows] == answers
    assert rows[5] == {
        "reward": 0.0,
        "answer": None,
        "mean@4": 0.25,
        "pass@4": 1.0,
        "maj@4": 0.0,
        "pass@1": 0.25,
        "pass@2": pytest.approx(0.5),
    }


def test_votes_on_sums_that_the_reward_math_finds() -> None:
    texts_of = {
        "7": ["3 + 4 = 7\n#### 7", "3 + 4 = 6\n#### 6", "#### 6", "7"],  # a tie
        "12": ["#### 12", "12", "I do not know", "5 + 7 = 13\n#### 13"],  # two votes of three
        "9": ["#### 8", "#### 8", "#### 9", ""],  # outvoted
    }
    texts = [text for same_texts in texts_of.values() for text in same_texts]
    rights = [right for right, same_texts in texts_of.items() for _ in same_texts]
    reward = Math()
    rewards = reward.score(
        [Sample(text, references=(f"#### {right}",)) for text, right in zip(texts, rights, strict=True)]
    )
    rows = [
        {"sample_id": right, "generated_text": text, "reward": score}
        for text, right, score in zip(texts, rights, rewards, strict=True)
    ]
    metrics = AtK(4)(rows, rights, rights, reward.answers_in(texts))
    # Right texts: 2, 2 and 1 of four. The votes: 1/2, 1 and 0, whose deviation is 1/2.
    assert metrics["mean@4"] == pytest.approx((2 + 2 + 1) / 12)
    assert (metrics["pass@4"], metrics["maj@4"]) == (1.0, 0.5)
    assert metrics["maj@4/standard_error"] == pytest.approx(0.5 / 3**0.5)
    assert metrics == pytest.approx(brute_force(rows))


def test_errors_are_those_of_resampled_prompts() -> None:
    draw = np.random.default_rng(1)
    chances = draw.beta(0.6, 1.0, 150)  # easy and hard prompts
    rewards = [(draw.random(8) < chance).astype(float).tolist() for chance in chances]
    metrics = AtK(8)(*rows_of(rewards), None)
    estimates = {
        "mean@8": np.array([statistics.fmean(values) for values in rewards]),
        "pass@2": np.array([pass_at_k(8, int(sum(values)), 2) for values in rewards]),
        "pass@8": np.array([float(any(values)) for values in rewards]),
    }
    for name, numbers in estimates.items():
        assert metrics[name] == pytest.approx(numbers.mean())
        means = [numbers[draw.integers(0, 150, 150)].mean() for _ in range(4000)]
        assert metrics[f"{name}/standard_error"] == pytest.approx(np.std(means), rel=0.06)
    by_texts = statistics.stdev(value for values in rewards for value in values) / (150 * 8) ** 0.5
    assert metrics["mean@8/standard_error"] > 1.7 * by_texts  # what a count of texts would claim


def test_two_rows_of_a_data_set_with_one_prompt_are_one_draw() -> None:
    rows, groups, _ = rows_of([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    alone = AtK(2)(rows, groups, [f"p/{group}" for group in groups], None)
    same = AtK(2)(rows, groups, ["a", "a", "a", "a", "b", "b", "b", "b"], None)
    assert alone["pass@1"] == same["pass@1"] == 0.375
    assert same["pass@1/standard_error"] == pytest.approx((0.75 - 0) / 2)  # of the prompts' means
    assert alone["pass@1/standard_error"] < same["pass@1/standard_error"]


def test_a_prompt_whose_texts_were_not_all_scored_is_left_out_where_it_has_too_few() -> None:
    metrics = AtK(4)(*rows_of([[1.0, 1.0], [0.0, 0.0, 0.0, 1.0]]), None)
    assert metrics["pass@4"] == 1.0 and "pass@4/standard_error" not in metrics  # of the second alone
    assert metrics["pass@2"] == pytest.approx((1 + 0.5) / 2)
    assert metrics["mean@4"] == pytest.approx((1 + 0.25) / 2)


def test_a_metric_or_a_part_of_the_reward_decides_who_passes() -> None:
    rows, groups, prompts = rows_of([[0.0, 0.0], [0.0, 0.0]])
    for row, value in zip(rows, (0.4, 0.6, 0.1, 0.2), strict=True):
        row["reward/math"] = value
    metrics = AtK(2, "reward/math", 0.6)(rows, groups, prompts, None)
    assert (metrics["mean@2"], metrics["pass@1"], metrics["pass@2"]) == (pytest.approx(0.325), 0.25, 0.5)
    assert AtK(2, "reward/math", None)(rows, groups, prompts, ["a"] * 4).keys() == {
        "mean@2",
        "mean@2/standard_error",
    }
    with pytest.raises(InputError, match=r"evaluation.pass_by=reward/maths: no such column.*reward/math"):
        AtK(2, "reward/maths")(rows, groups, prompts, None)


def test_a_single_text_per_prompt_adds_nothing() -> None:
    assert AtK.of(EvaluationSettings()) is None
    rule = AtK.of(EvaluationSettings(samples_per_prompt=8, pass_by="reward/math", pass_at=0.5))
    assert rule == AtK(8, "reward/math", 0.5)
    assert sizes(8) == [1, 2, 4, 8]
    assert AtK(4)([], [], [], None) == {}
