"""A curriculum by pass rate: what is drawn less, how often it comes back, and that a state says it all."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.training.sources.curriculum import PassRates
from services.training.sources.prompt_order import PromptOrder

rates = st.floats(0, 1)
SOLVED, FAILED, MIXED = [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]


def order(count: int, seed: int = 0, least_share: float = 0.1) -> PromptOrder:
    return PromptOrder(count, seed, rates=PassRates(1.0, least_share))


def test_the_first_group_sets_the_rate_and_each_further_one_moves_it_half_of_the_way() -> None:
    pass_rates = PassRates(solved_at=0.5, least_share=0.2)
    pass_rates.learn(3, [0.4, 0.5, 0.6, 0.0])  # 2 of 4
    assert pass_rates.metrics()["curriculum/pass_rate"] == 0.5
    pass_rates.learn(3, [1.0, 1.0])  # (1/2 + 1) / 2
    assert pass_rates.metrics()["curriculum/pass_rate"] == 0.75
    assert pass_rates.share(3) == pytest.approx(0.2 + 0.8 * 4 * 0.75 * 0.25)


@given(least=st.floats(0.01, 1), groups=st.lists(st.lists(st.booleans(), min_size=1, max_size=8)))
def test_a_share_is_between_the_least_and_1(least: float, groups: list[list[bool]]) -> None:
    pass_rates = PassRates(1.0, least)
    for group in groups:
        pass_rates.learn(0, [float(solved) for solved in group])
    assert least - 1e-12 <= pass_rates.share(0) <= 1.0 + 1e-12


def test_prompts_that_are_always_or_never_solved_come_in_a_tenth_of_the_epochs() -> None:
    """Solve a third of prompts 0 … 29 always, a third never, and a third half of the time.

    In 400 epochs, the last comes 4,000 times. A prompt of the others comes with chance 0.1 an epoch: 400
    of 4,000 are expected of each kind, with a standard deviation of (4000 · 0.1 · 0.9) ** 0.5 = 19.
    """
    some = order(30)
    for index in range(30):
        some.learn(index, (SOLVED, FAILED, MIXED)[index % 3])
    drawn: Counter[int] = Counter()
    while some.epochs < 400:
        drawn[some.next(1)[0] % 3] += 1
    assert 3999 <= drawn[2] <= 4000
    assert abs(drawn[0] - 400) < 95
    assert abs(drawn[1] - 400) < 95


def test_a_prompt_comes_at_most_once_an_epoch_and_all_come_before_anything_is_known() -> None:
    some = order(20, seed=4)
    assert sorted(some.next(20)) == list(range(20))
    assert PromptOrder(20, 4).next(20) == order(20, seed=4).next(20)
    for index in range(20):
        some.learn(index, (SOLVED, MIXED)[index % 2])
    epoch = some.next(10)
    assert len(set(epoch)) == 10


def test_one_prompt_that_is_always_solved_comes_all_the_same() -> None:
    some = order(1, least_share=0.01)
    some.learn(0, SOLVED)
    assert some.next(5) == [0] * 5


@given(
    count=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
    rewards=st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=4), max_size=30),
    stop=st.integers(0, 30),
)
def test_a_restored_order_draws_and_learns_as_the_whole_one(
    count: int, seed: int, rewards: list[list[float]], stop: int
) -> None:
    def play(some: PromptOrder, groups: list[list[float]]) -> list[int]:
        drawn = []
        for group in groups:
            drawn += some.next(2)
            some.learn(drawn[-1], group)
        return drawn

    whole, stopped, again = order(count, seed), order(count, seed), order(count, seed)
    expected = play(whole, rewards)
    begun = play(stopped, rewards[:stop])
    again.restore(json.loads(json.dumps(stopped.state())))
    assert begun + play(again, rewards[stop:]) == expected
    assert again.state() == whole.state()


def test_weights_and_pass_rates_work_together() -> None:
    some = PromptOrder(3, seed=1, weights=[1, 0, 1], rates=PassRates(1.0, 0.1))
    some.learn(0, FAILED)
    drawn = Counter(some.next(550))
    assert drawn[1] == 0
    assert abs(drawn[0] - 50) < 34  # 1 of 11; the standard deviation is (550 · 1/11 · 10/11) ** 0.5 = 6.7


def test_without_a_curriculum_the_state_has_none_and_nothing_is_learned() -> None:
    plain = PromptOrder(3, seed=5)
    plain.learn(0, SOLVED)
    assert plain.state() == {"prompts_count": 3, "seed": 5, "position": 0}
    assert plain.metrics() == {}
