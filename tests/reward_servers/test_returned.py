"""A grader's allowed and refused return values."""

import itertools
import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import RewardError
from contracts.scores import Grade, MetricValue, Sample
from reward_servers.user_rewards.grades import misfit
from reward_servers.user_rewards.returned import Misshapen, scores_of, values_of


def generated() -> Iterator[float]:
    yield from (1.0, 0.5)


@pytest.mark.parametrize(
    "returned",
    [
        [1.0, 0.5],
        (1, 0.5),
        deque([1.0, 0.5]),
        {"a": 1.0, "b": 0.5}.values(),
        np.array([1.0, 0.5]),
        np.array([1.0, 0.5], dtype=np.float16),
        [np.float32(1.0), np.array(0.5)],
        torch.tensor([1.0, 0.5]),
        [torch.tensor(1.0), torch.tensor(0.5)],
        [Fraction(1), Decimal("0.5")],
        generated(),
        map(float, (1, 0.5)),
    ],
)
def test_anything_in_order_that_has_a_number_for_each_sample(returned: Any) -> None:
    scores = scores_of(returned, 2)
    assert scores == [1.0, 0.5] and all(type(score) is float for score in scores)


@pytest.mark.parametrize("returned", [[True, False], np.array([True, False]), [np.True_, 0]])
def test_truth_values_are_one_and_zero(returned: Any) -> None:
    assert scores_of(returned, 2) == [1.0, 0.0]


async def a_coroutine() -> list[float]:
    return [1.0, 0.5]


async def asynchronous() -> Any:
    yield 1.0


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({0.1: 1.0, 0.2: 0.5}, "returned a dict {0.1: 1.0, 0.2: 0.5}; expected a list of 2 numbers"),
        (MappingProxyType({0: 1, 1: 2}), "returned a mappingproxy mappingproxy({0: 1, 1: 2})"),
        ({1.0, 0.5}, "returned a set {0.5, 1.0}; expected"),
        (frozenset({1.0, 0.5}), "returned a frozenset"),
        ({1.0: "a", 0.5: "b"}.keys(), "returned a dict_keys"),
        ("12", "returned a str '12'; expected a list of 2 numbers, one for each sample"),
        (b"12", "returned a bytes b'12'"),
        (1.0, "returned a float 1.0; expected"),
        (True, "returned a bool True; expected"),
        (None, "returned None; expected"),
        (list, "returned <class 'list'>; expected"),
        (object(), "returned an object <object object"),
        (np.float64(1.0), "returned a float64 of shape (); expected"),
        (np.array([[1.0, 0.5]]), "returned a ndarray of shape (1, 2); expected"),
        (np.array([[1.0], [0.5]]), "returned a ndarray of shape (2, 1); expected"),
        (torch.zeros(2, 3), "returned a Tensor of shape (2, 3); expected"),
        (torch.tensor(1.0), "returned a Tensor of shape (); expected"),
        ([1.0], "returned 1 scores for 2 samples"),
        ([], "returned 0 scores for 2 samples"),
        ([1.0, 0.5, 0.0], "returned more scores for 2 samples"),
        (itertools.repeat(1.0), "returned more scores for 2 samples"),
        (["1.0", "0.5"], "returned a str '1.0', which is no number"),
        ([1.0, "good"], "returned a str 'good', which is no number"),
        ([np.str_("1"), 1.0], "which is no number"),
        ([[1.0, "good"], 0.5], "returned a list [1.0, 'good'], in which a str 'good' is neither a"),
        ([[1.0, []], 0.5], "in which a list [] is neither a number nor a span; expected"),
        ([[1.0, ""], 0.5], "in which a str '' is neither a number nor a span; expected"),
        ([[torch.zeros(2), 1.0], 0.5], "in which a Tensor tensor([0., 0.]) is neither a number nor a span"),
        ([[[1.0], [0.5]], 0.5], "in which a list [1.0] is neither a number nor a span; expected"),
        ([np.array([[1.0]]), 0.5], "returned a ndarray array([[1.]]), which is no number"),
        ([1j, 0.5], "returned a complex 1j, which is no number"),
        ([("why", 1.0), 0.5], "is neither a number nor a span"),
        ([[(0, 4, "good")], 0.5], "returned a str 'good', which is no number"),
        ([[(0.5, 4, 1.0)], 0.5], "returned a span that begins or ends at 0.5; expected a whole number"),
        ([{"scores": 1.0}, 0.5], "returned a dict {'scores': 1.0}; expected a number, or a record"),
        ([{"score": 1.0, "notes": ""}, 0.5], "with the unknown key 'notes'; expected"),
        ([{"score": "good"}, 0.5], "returned a str 'good', which is no number"),
        ([{"score": 1.0, "values": 2}, 0.5], "expected values by name, and a text as comment"),
        ([{"score": 1.0, "comment": 2}, 0.5], "expected values by name, and a text as comment"),
        ([{"score": 1.0, "values": {"a:b": 1}}, 0.5], "returned a value named 'a:b'; expected up to 64"),
        ([{"score": 1.0, "values": {"a": "x"}}, 0.5], "value 'a', returned a str 'x', which is no number"),
        ([Grade(1.0, values=dict.fromkeys(map(str, range(65)), 0.0)), 0.5], "65 values of a text; expected"),
        ([Grade([1.0], by="word"), 0.5], "returned by='word'; expected 'token' or 'turn'"),  # type: ignore[arg-type]
        ([{"score": [1.0], "by": []}, 0.5], "returned by=[]; expected 'token' or 'turn'"),
        ("x" * 500, "…; expected"),
    ],
)
def test_what_can_be_no_scores_is_refused_with_what_was_got(returned: Any, message: str) -> None:
    with pytest.raises(Misshapen) as caught:
        scores_of(returned, 2)
    assert f"score() {message}" in str(caught.value) or (
        message in str(caught.value) and "score()" in str(caught.value)
    )
    assert len(str(caught.value)) < 250 and "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, np.float32("nan"), torch.tensor(math.nan)])
def test_a_sample_without_a_score_is_that_samples_own_matter(number: Any) -> None:
    with pytest.raises(RewardError) as caught:
        scores_of([1.0, number], 2)
    assert not isinstance(caught.value, Misshapen)
    assert "which is no number" in str(caught.value) or "which is no finite number" in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ([0, 0.5, True], Grade((0.0, 0.5, 1.0))),
        (np.array([0, 0.5]), Grade((0.0, 0.5))),
        (torch.tensor([0, 0.5]), Grade((0.0, 0.5))),
        ([torch.tensor(0.0), torch.tensor(0.5)], Grade((0.0, 0.5))),
        ([np.array(0.25), np.float32(0.5), torch.tensor(1)], Grade((0.25, 0.5, 1.0))),
        ([(np.array(0), torch.tensor(4), torch.tensor(0.5))], Grade(((0, 4, 0.5),))),
        ([], Grade(())),
        ([(0, 4, 0.5), [5, 9, 1]], Grade(((0, 4, 0.5), (5, 9, 1.0)))),
        ({"score": [[0, 4, 0.5]]}, Grade(((0, 4, 0.5),))),
        ({"score": [1, 2], "by": "turn"}, Grade((1.0, 2.0), by="turn")),
        (
            {"score": 1, "values": {"format": True}, "comment": "Well."},
            Grade(1.0, {"format": 1.0}, "Well."),
        ),
        (Grade(np.float32(0.5), comment="Well."), Grade(0.5, comment="Well.")),  # type: ignore[arg-type]
        (Grade(1.0, comment="x" * 10_001), Grade(1.0, comment="x" * 9_999 + "…")),
        (Grade(1.0, comment="x" * 10_000), Grade(1.0, comment="x" * 10_000)),
        (Grade(1.0, comment="got \udcff"), Grade(1.0, comment="got \\udcff")),  # for JSON and tokenizers
        (Grade(None, comment="Not mine."), Grade(None, comment="Not mine.")),
        (Grade(1), 1.0),
        ({"score": 1.0, "error": None, "values": None, "comment": None, "by": None}, 1.0),
        ({"score": [1, 2], "by": None}, Grade((1.0, 2.0))),
        ({"score": None}, None),
    ],
)
def test_more_than_a_number_is_a_grade_and_survives_json(returned: Any, expected: Any) -> None:
    (score,) = scores_of([returned], 1)
    assert score == expected and type(score) is type(expected)
    assert scores_of([score], 1) == [expected]
    if isinstance(expected, Grade):
        assert scores_of([json.loads(json.dumps(expected.as_json()))], 1) == [expected]


@pytest.mark.parametrize(
    "returned",
    [[0.0, math.nan], [(0, 1, math.inf)], {"score": math.nan}, {"score": 1.0, "values": {"a": math.nan}}],
)
def test_no_number_inside_may_be_unbounded(returned: Any) -> None:
    with pytest.raises(RewardError, match="which is no finite number") as caught:
        scores_of([returned], 1)
    assert not isinstance(caught.value, Misshapen)


def test_a_record_of_a_server_may_say_why_there_is_no_score() -> None:
    with pytest.raises(RewardError, match=r"^too long$"):
        scores_of([{"score": None, "error": "too long"}], 1)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ([1.0], "got 1 scores of tokens, and the model generated 2 tokens; expected one for each"),
        (Grade([1.0, 1.0, 1.0], by="turn"), "got 3 scores of turns, and the model gave 1 answers"),
        ([(3, 3, 1.0)], "got a span of characters 3 to 3, and the text has 3; expected (start, end, score)"),
        ([(0, 4, 1.0)], "got a span of characters 0 to 4, and the text has 3"),
        ([(0, 1, 1.0), (-1, 2, 1.0)], "got a span of characters -1 to 2"),
    ],
)
def test_places_that_do_not_fit_the_sample(score: Any, message: str) -> None:
    (grade,) = scores_of([score], 1)
    assert message in str(misfit(grade, Sample("a b", num_tokens=2)))


def test_places_that_fit_the_sample() -> None:
    for score in ([1.0, 0.0], [(0, 3, 1.0), (0, 1, 1.0)], [], 1.0, None, Grade([1.0], by="turn")):
        (fitting,) = scores_of([score], 1)
        assert misfit(fitting, Sample("a b", num_tokens=2)) is None
    assert misfit(Grade([1.0, 2.0], by="turn"), Sample("a\nb", num_tokens=2, turns=("a", "b"))) is None
    assert misfit(Grade([1.0]), Sample("a b")) is None  # nobody knows its tokens


def test_none_says_nothing_about_a_sample() -> None:
    assert scores_of((None, 1), 2) == [None, 1.0]


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False)), st.sampled_from([list, tuple, iter, np.array])
)
def test_numbers_come_out_as_they_went_in(numbers: list[float], kind: Any) -> None:
    assert scores_of(kind(numbers), len(numbers)) == numbers


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_nothing_else_gets_through(returned: Any) -> None:
    try:
        scores = scores_of(returned, 2)
    except RewardError:
        return
    assert isinstance(returned, list) and len(scores) == 2
    for score in scores:
        total = score.total if isinstance(score, Grade) else score
        assert total is None or math.isfinite(total)


# Metrics

VALUE = MetricValue(0.5, (0.0, 1.0))


def test_values_by_key() -> None:
    values = values_of(MappingProxyType({"a": VALUE, "b": MetricValue(np.float64(1.0), np.array([1, 0]))}), 2)
    assert values == {"a": VALUE, "b": MetricValue(1.0, (1.0, 0.0))}
    assert values_of({}, 2) == {}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (0.5, "compute() returned a float 0.5; expected a mapping of keys to MetricValue"),
        (None, "compute() returned None; expected a mapping"),
        ([("a", VALUE)], "compute() returned a list"),
        (VALUE, "compute() returned a MetricValue"),
        ({"a": 0.5}, "compute() returned a float 0.5 for 'a'; expected a MetricValue"),
        ({"a": MetricValue}, "compute() returned <class 'contracts.scores.MetricValue'> for 'a'; expected"),
        ({3: VALUE}, "compute() returned the key an int 3; expected a text"),
        ({"a": MetricValue(0.5, (1.0,))}, "compute() returned 1 rows for 'a', of 2 samples"),
        ({"a": MetricValue("high")}, "compute(), 'a' returned a str 'high', which is no number"),  # type: ignore[arg-type]
    ],
)
def test_what_can_be_no_values_is_refused_with_what_was_got(returned: Any, message: str) -> None:
    with pytest.raises(Misshapen) as caught:
        values_of(returned, 2)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [MetricValue(math.nan), MetricValue(0.5, (math.nan, 1.0))])
def test_values_that_are_not_finite(value: MetricValue) -> None:
    values: Mapping[str, MetricValue] = {"a": value}
    with pytest.raises(RewardError, match="which is no finite number") as caught:
        values_of(values, 2)
    assert not isinstance(caught.value, Misshapen)
