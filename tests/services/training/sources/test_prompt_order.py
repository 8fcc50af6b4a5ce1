"""The order of prompts: every epoch a permutation, and resuming changes nothing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError
from services.training.sources.prompt_order import PromptOrder, scaled

counts, seeds = st.integers(1, 40), st.integers(0, 2**32 - 1)


@given(count=counts, seed=seeds, epochs=st.integers(1, 4))
def test_every_epoch_has_each_prompt_once(count: int, seed: int, epochs: int) -> None:
    order = PromptOrder(count, seed)
    for _ in range(epochs):
        assert sorted(order.next(count)) == list(range(count))


@given(count=counts, seed=seeds, taken=st.integers(0, 100), rest=st.integers(0, 100))
def test_a_restored_order_gives_exactly_the_rest(count: int, seed: int, taken: int, rest: int) -> None:
    whole = PromptOrder(count, seed).next(taken + rest)
    order = PromptOrder(count, seed)
    order.next(taken)
    assert PromptOrder.from_state(order.state()).next(rest) == whole[taken:]


@given(count=counts, seed=seeds, pieces=st.lists(st.integers(0, 17), max_size=8))
def test_how_many_are_taken_at_once_makes_no_difference(count: int, seed: int, pieces: list[int]) -> None:
    whole = PromptOrder(count, seed).next(sum(pieces))
    order = PromptOrder(count, seed)
    assert [index for piece in pieces for index in order.next(piece)] == whole


def test_epochs_and_seeds_differ() -> None:
    order = PromptOrder(100, seed=0)
    first, second = order.next(100), order.next(100)
    assert first != second
    assert first != PromptOrder(100, seed=1).next(100)
    assert first != list(range(100))


def test_the_state_is_plain_numbers() -> None:
    order = PromptOrder(3, seed=5)
    order.next(4)
    assert order.state() == {"prompts_count": 3, "seed": 5, "position": 4}


def test_an_order_of_another_number_of_prompts_is_no_place_to_go_on_from() -> None:
    state = PromptOrder(3, seed=5).state()
    for count in (2, 4):
        with pytest.raises(InputError, match=f"began with 3 training prompts, but now has {count}"):
            PromptOrder(count, seed=5).restore(state)


def test_an_order_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one prompt"):
        PromptOrder(0, seed=0)


# Weights


some_weights = st.lists(st.floats(0, 1e6), min_size=1, max_size=20).filter(any)


@given(weights=some_weights, seed=seeds, taken=st.integers(0, 60), rest=st.integers(0, 60))
def test_a_restored_weighted_order_gives_exactly_the_rest(
    weights: list[float], seed: int, taken: int, rest: int
) -> None:
    count = len(weights)
    whole = PromptOrder(count, seed, weights=weights).next(taken + rest)
    order = PromptOrder(count, seed, weights=weights)
    order.next(taken)
    assert PromptOrder.from_state(order.state(), weights).next(rest) == whole[taken:]
    assert all(weights[index] > 0 for index in whole)


def test_prompts_are_drawn_in_proportion_to_their_weights() -> None:
    # Of 8000 draws 1000, 3000 and 4000 are expected; the standard deviation of the first is
    # (8000 * 1/8 * 7/8) ** 0.5 = 30, of the others 43 and 45. Five of them are allowed.
    order = PromptOrder(4, seed=1, weights=[1, 3, 0, 4])
    drawn = order.next(8000)
    counts = [drawn.count(index) for index in range(4)]
    assert counts[2] == 0
    for count, expected, deviation in zip(
        (counts[0], counts[1], counts[3]), (1000, 3000, 4000), (30, 43, 45), strict=True
    ):
        assert abs(count - expected) < 5 * deviation


def test_the_scale_is_an_exponent_and_nothing_at_0() -> None:
    assert scaled([1, 2, 3], 2) == [1.0, 4.0, 9.0]
    assert scaled([0, 9], 0.5) == [0.0, 3.0]
    assert scaled([1, 2], 0) is None
    assert PromptOrder(3, seed=5, weights=scaled([1, 2, 3], 0)).next(9) == PromptOrder(3, seed=5).next(9)


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_what_is_no_weight_is_refused(weight: float) -> None:
    with pytest.raises(InputError, match=r"the weight of prompt 1 is .*; expected a number of at least 0"):
        scaled([1.0, weight], 1.0)


@pytest.mark.parametrize("weights", [[0.0, 0.0], scaled([1e200, 1.0], 2)])
def test_weights_that_leave_nothing_to_draw_are_refused(weights: list[float]) -> None:
    with pytest.raises(InputError, match=r"no prompt has a weight above 0, or a scaled weight overflows"):
        PromptOrder(2, seed=0, weights=weights)


def test_huge_weights_are_drawn_all_the_same() -> None:
    assert set(PromptOrder(2, seed=0, weights=[1.7e308, 1.7e308]).next(50)) == {0, 1}
