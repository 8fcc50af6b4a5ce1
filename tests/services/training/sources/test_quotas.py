"""Quotas of a mixture: never off by a whole prompt, whatever the weights and however long it goes on."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.training.sources.quotas import Quotas

weights = st.lists(st.floats(0.001, 1000), min_size=1, max_size=8)


@given(weights=weights, draws=st.integers(1, 200))
def test_at_every_moment_each_part_is_within_one_prompt_of_its_share(
    weights: list[float], draws: int
) -> None:
    quotas, whole = Quotas(weights), sum(Fraction(str(weight)) for weight in weights)
    bound = 1 - Fraction(1, 2 * len(weights) - 2) if len(weights) > 1 else 0
    for time in range(1, draws + 1):
        quotas.next()
        for count, weight in zip(quotas.counts, weights, strict=True):
            assert abs(count - Fraction(str(weight)) / whole * time) <= bound < 1


@given(weights=weights, taken=st.integers(0, 50), rest=st.integers(0, 50))
def test_the_counts_are_the_whole_state(weights: list[float], taken: int, rest: int) -> None:
    whole, again = Quotas(weights), Quotas(weights)
    for _ in range(taken):
        whole.next()
    again.counts = list(whole.counts)
    assert [again.next() for _ in range(rest)] == [whole.next() for _ in range(rest)]


def test_3_to_1_gives_6_and_2_of_each_8() -> None:
    quotas = Quotas([3, 1])
    drawn = [quotas.next() for _ in range(80)]
    assert all(drawn[start : start + 8].count(0) == 6 for start in range(0, 80, 8))


def test_what_matters_is_the_ratio() -> None:
    tenths, ones = Quotas([0.3, 0.1, 0.2]), Quotas([3, 1, 2])
    assert [tenths.next() for _ in range(60)] == [ones.next() for _ in range(60)]


@pytest.mark.parametrize("weights", [[], [1.0, 0.0], [-1.0]])
def test_weights_are_above_0(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights above 0"):
        Quotas(weights)
