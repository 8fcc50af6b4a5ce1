"""Standard errors over prompts: by hand, beside the sandwich matrix, beside resampled prompts; laws."""

import math
import random
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runs.standard_errors import Change, standard_error, standard_error_of_change

VALUES = st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 3))
# Values with their prompts: two prompts or more, each with one text or several.
GROUPS = st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=2, max_size=8)


def flat(groups: Sequence[Sequence[float]]) -> tuple[list[float], list[int]]:
    pairs = [(value, prompt) for prompt, group in enumerate(groups) for value in group]
    return [value for value, _ in pairs], [prompt for _, prompt in pairs]


def sandwich(x_NK: np.ndarray, y_N: np.ndarray, prompts: Sequence[object]) -> np.ndarray:
    """Covariance of least squares' coefficients as textbooks and statsmodels have it, but for (N-1)/(N-K)."""
    bread_KK = np.linalg.inv(x_NK.T @ x_NK)
    residuals_N = y_N - x_NK @ (bread_KK @ x_NK.T @ y_N)
    names = sorted(set(prompts), key=str)
    meat_KK = np.zeros_like(bread_KK)
    for name in names:
        places = [place for place, prompt in enumerate(prompts) if prompt == name]
        score_K = x_NK[places].T @ residuals_N[places]
        meat_KK += np.outer(score_K, score_K)
    return len(names) / (len(names) - 1) * bread_KK @ meat_KK @ bread_KK


def test_prompts_with_several_texts_by_hand() -> None:
    # Three prompts with 2, 1 and 3 texts, mean 18 / 6 = 3. Residuals add up to -2 - 1, 1 and 3 - 2 + 1.
    values, prompts = [1.0, 2.0, 4.0, 6.0, 1.0, 4.0], ["a", "a", "b", "c", "c", "c"]
    assert standard_error(values, prompts) == pytest.approx(math.sqrt(3 / 2 * (9 + 1 + 4)) / 6)


def test_four_equal_texts_of_each_prompt_say_no_more_than_one() -> None:
    prompts, rewards = list(range(8)), [0.1, 0.9, 0.4, 0.5, 0.2, 0.8, 0.7, 0.3]
    once = standard_error(rewards, prompts)
    assert once == pytest.approx(statistics.stdev(rewards) / math.sqrt(8))
    assert standard_error(rewards * 4, prompts * 4) == pytest.approx(once)
    by_texts = statistics.stdev(rewards * 4) / math.sqrt(32)
    assert once is not None and once > 2 * by_texts  # what a count of texts would claim


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0]])
def test_one_prompt_says_nothing_of_the_error(values: list[float]) -> None:
    assert standard_error(values, ["a"] * len(values)) is None
    assert standard_error_of_change(values, ["a"] * len(values), values, ["a"] * len(values)) is None


def test_a_value_without_its_prompt_is_no_mean() -> None:
    with pytest.raises(ValueError, match="zip"):
        standard_error([1.0, 2.0], ["a"])


@given(GROUPS)
def test_it_is_the_sandwich_of_a_regression_on_a_constant(groups: list[list[float]]) -> None:
    values, prompts = flat(groups)
    variance = sandwich(np.ones((len(values), 1)), np.array(values), prompts)[0, 0]
    assert standard_error(values, prompts) == pytest.approx(math.sqrt(variance), rel=1e-6, abs=1e-9)


@given(st.data(), st.integers(1, 4))
def test_with_as_many_texts_of_each_prompt_it_is_that_of_the_prompts_means(
    data: st.DataObject, k: int
) -> None:
    same_size = st.lists(VALUES, min_size=k, max_size=k)
    groups = data.draw(st.lists(same_size, min_size=2, max_size=8))
    means = [statistics.fmean(group) for group in groups]
    expected = statistics.stdev(means) / math.sqrt(len(means))
    assert standard_error(*flat(groups)) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(GROUPS, VALUES, st.floats(0.1, 10), st.randoms())
def test_it_knows_no_order_and_no_origin_and_has_the_values_scale(
    groups: list[list[float]], shift: float, scale: float, order: random.Random
) -> None:
    values, prompts = flat(groups)
    pairs = [(scale * value + shift, prompt) for value, prompt in zip(values, prompts, strict=True)]
    order.shuffle(pairs)
    error, moved = standard_error(values, prompts), standard_error(*map(list, zip(*pairs, strict=True)))
    assert error is not None and moved == pytest.approx(scale * error, rel=1e-6, abs=1e-6)


def test_resampled_prompts_spread_as_it_says() -> None:
    draw = np.random.default_rng(0)
    groups = []
    for _ in range(60):
        middle = draw.normal(0, 1)
        groups.append((middle + draw.normal(0, 0.3, draw.integers(1, 6))).tolist())
    means = []
    for _ in range(4000):
        chosen = [groups[place] for place in draw.integers(0, len(groups), len(groups))]
        means.append(statistics.fmean(value for group in chosen for value in group))
    values, prompts = flat(groups)
    assert standard_error(values, prompts) == pytest.approx(statistics.stdev(means), rel=0.06)
    by_texts = statistics.stdev(values) / math.sqrt(len(values))
    assert by_texts < 0.7 * statistics.stdev(means)  # as it was computed before


def test_the_same_prompts_are_compared_in_pairs() -> None:
    # Easy and hard prompts, each a little better: the means' own errors hide what the pairs show.
    before, prompts = [0.1, 0.5, 0.9, 0.3], ["a", "b", "c", "d"]
    after = [0.2, 0.58, 1.0, 0.42]  # + 0.10, 0.08, 0.10, 0.12
    paired = standard_error_of_change(before, prompts, after, prompts)
    assert paired == pytest.approx(statistics.stdev([0.1, 0.08, 0.1, 0.12]) / 2)
    alone = [standard_error(before, prompts), standard_error(after, prompts)]
    assert paired is not None and all(error is not None and error > 10 * paired for error in alone)


@given(GROUPS, GROUPS)
def test_a_change_is_the_sandwich_of_a_regression_on_before_and_after(
    before: list[list[float]], after: list[list[float]]
) -> None:
    (lost, of_lost), (gained, of_gained) = flat(before), flat(after)
    indicator = [0.0] * len(lost) + [1.0] * len(gained)
    x_NK = np.stack([np.ones(len(indicator)), indicator], axis=1)
    variance = sandwich(x_NK, np.array(lost + gained), of_lost + of_gained)[1, 1]
    error = standard_error_of_change(lost, of_lost, gained, of_gained)
    assert error == pytest.approx(math.sqrt(max(variance, 0.0)), rel=1e-5, abs=1e-6)
    assert standard_error_of_change(gained, of_gained, lost, of_lost) == pytest.approx(error)


@given(GROUPS, GROUPS)
def test_prompts_that_only_one_side_has_are_independent(
    before: list[list[float]], after: list[list[float]]
) -> None:
    (lost, of_lost), (gained, of_gained) = flat(before), flat(after)
    others = [len(before) + prompt for prompt in of_gained]
    count = len(before) + len(after)
    squares = [
        (len(groups) - 1) / len(groups) * (standard_error(*flat(groups)) or 0.0) ** 2
        for groups in (before, after)
    ]
    error = standard_error_of_change(lost, of_lost, gained, others)
    assert error == pytest.approx(math.sqrt(count / (count - 1) * sum(squares)), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("difference", "error", "direction"),
    [
        (0.00035, 0.029, 0),
        (0.029, 0.029, 0),
        (0.058, 0.029, 0),
        (0.0581, 0.029, 1),
        (-0.0581, 0.029, -1),
        (0.5, None, 0),
        (math.nan, 0.029, 0),
        (0.1, 0.0, 1),
        (0.0, 0.0, 0),
    ],
)
def test_a_change_has_a_direction_beyond_twice_its_error(
    difference: float, error: float | None, direction: int
) -> None:
    assert Change(difference, error).direction == direction
