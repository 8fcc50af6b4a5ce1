"""The order of a mixture: quotas, an order for each part, and a state that repeats it to the bit."""

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from contracts.rollout import Prompt
from services.data.tasks.mixture import InTurns
from services.training.sources.curriculum import PassRates
from services.training.sources.mixture_order import MixtureOrder, OrderedPart, seed_of
from services.training.sources.prompt_order import PromptOrder

sizes = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 9), min_size=1)


def prompts(sizes: dict[str, int]) -> InTurns:
    return InTurns({part: [Prompt(str(row), part) for row in range(count)] for part, count in sizes.items()})


def mixed(sizes: dict[str, int], weights: dict[str, float], seed: int = 0) -> MixtureOrder:
    both = prompts(sizes)
    return MixtureOrder(
        {
            part: OrderedPart(
                weights.get(part, 1.0),
                PromptOrder(count, seed_of(seed, part), rates=PassRates(1.0, 0.1)),
                both.places(part),
            )
            for part, count in sizes.items()
        }
    )


@given(sizes)
def test_parts_take_turns_and_each_prompt_comes_once(sizes: dict[str, int]) -> None:
    both = prompts(sizes)
    assert Counter(prompt.part for prompt in both) == Counter(sizes)
    for part, count in sizes.items():
        in_part = [both[place] for place in both.places(part)]
        assert [prompt.id for prompt in in_part] == [f"{part}/{row}" for row in range(count)]
        assert list(both.of_part(part)) == in_part
    first = both[: len(sizes)]
    assert len({prompt.part for prompt in first}) == len(first)


@given(sizes, st.integers(1, 60))
def test_each_part_has_epochs_of_its_own(sizes: dict[str, int], draws: int) -> None:
    both, order = prompts(sizes), mixed(sizes, {})
    drawn = Counter(order.next(draws))
    for part in sizes:
        counts = [drawn[place] for place in both.places(part)]
        assert max(counts) - min(counts) <= 1
        assert abs(sum(counts) - draws / len(sizes)) < 1


def test_another_part_changes_no_order_of_the_others() -> None:
    alone, beside = mixed({"a": 9}, {}), mixed({"a": 9, "b": 3}, {})
    both = prompts({"a": 9, "b": 3})
    of_a = [both[place].id for place in beside.next(36) if both[place].part == "a"]
    assert of_a == [f"a/{row}" for row in alone.next(18)]
    assert seed_of(0, "a") != seed_of(0, "b") != seed_of(1, "b")


@given(
    sizes,
    st.dictionaries(st.sampled_from("abcde"), st.floats(0.1, 9)),
    st.integers(0, 2**32),
    st.lists(st.sampled_from([[0.0], [1.0], [0.0, 1.0]]), max_size=40),
    st.integers(0, 40),
)
def test_a_restored_mixture_goes_on_to_the_bit(
    sizes: dict[str, int], weights: dict[str, float], seed: int, groups: list[list[float]], stop: int
) -> None:
    def play(order: MixtureOrder, groups: list[list[float]]) -> list[int]:
        drawn = []
        for group in groups:
            drawn += order.next(3)
            order.learn(drawn[-1], group)
        return drawn

    whole, stopped, again = (mixed(sizes, weights, seed) for _ in range(3))
    expected = play(whole, groups)
    begun = play(stopped, groups[:stop])
    again.restore(json.loads(json.dumps(stopped.state())))
    assert begun + play(again, groups[stop:]) == expected
    assert (again.state(), again.metrics()) == (whole.state(), whole.metrics())


def test_a_part_learns_from_its_own_prompts() -> None:
    order, both = mixed({"a": 2, "b": 2}, {}), prompts({"a": 2, "b": 2})
    order.learn(both.places("b")[1], [1.0, 1.0])
    metrics = order.metrics()
    assert metrics["parts/b/curriculum/pass_rate"] == 1.0
    assert "parts/a/curriculum/pass_rate" not in metrics
