"""The order of prompts: every epoch a permutation, and resuming changes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.prompt_order import PromptOrder

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


def test_an_order_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one prompt"):
        PromptOrder(0, seed=0)
