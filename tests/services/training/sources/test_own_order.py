"""Curricula of one's own: what a class chooses, what its state restores, and what is refused."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.config.curriculum_settings import OwnCurriculum, typed
from services.training.sources.own_order import OwnOrder
from tests.own_curricula import Retire, Walk

HERE = "tests.services.training.sources.test_own_order"


def prompts(count: int) -> list[Prompt]:
    return [Prompt(f"p{number}", "?") for number in range(count)]


def order(name: str, count: int = 8, seed: int = 3, **options: Any) -> OwnOrder:
    return OwnOrder(OwnCurriculum(by=f"tests.own_curricula:{name}", **options), prompts(count), seed)


def order_of(kind: type, count: int = 8) -> OwnOrder:
    """The order of a class in this module, or of one that is made for a test."""
    globals()[kind.__name__] = kind
    return OwnOrder(OwnCurriculum(by=f"{HERE}:{kind.__name__}"), prompts(count), 3)


def refused(act: Callable[[], Any]) -> str:
    with pytest.raises(InputError) as caught:
        act()
    return str(caught.value)


@settings(deadline=None)
@given(
    name=st.sampled_from(["Retire", "Walk"]),
    groups=st.lists(st.tuples(st.integers(1, 5), st.lists(st.floats(-1, 1), max_size=3)), max_size=12),
    stop=st.integers(0, 12),
)
def test_a_restored_order_chooses_and_learns_as_the_whole_one(
    name: str, groups: list[tuple[int, list[float]]], stop: int
) -> None:
    def play(some: OwnOrder, groups: list[tuple[int, list[float]]]) -> list[int]:
        drawn = []
        for count, rewards in groups:
            drawn += some.next(count)
            some.learn(drawn[-1], rewards)
        return drawn

    whole, stopped, again = (order(name) for _ in range(3))
    expected = play(whole, groups)
    begun = play(stopped, groups[:stop])
    state = stopped.state()
    kept = json.loads(json.dumps(state))
    play(stopped, groups[stop:])
    assert state == kept  # the state is of its moment, though the class goes on with its own objects
    again.restore(kept)
    assert begun + play(again, groups[stop:]) == expected
    assert (again.state(), again.metrics()) == (whole.state(), whole.metrics())


def test_what_earned_nothing_is_chosen_no_more_and_the_seed_decides_the_rest() -> None:
    some = order("Retire", after=2)
    for index in (0, 0, 1):
        some.learn(index, [0.0, -1.0])
    some.learn(2, [0.0, 0.5])
    drawn = Counter(index for _ in range(60) for index in some.next(6))
    assert set(drawn) == {1, 2, 3, 4, 5, 6, 7}
    assert some.metrics() == {"curriculum/retired": 1.0}
    assert some.epochs == 45
    assert order("Retire").next(8) == order("Retire").next(8) != order("Retire", seed=4).next(8)


def test_a_group_without_scores_is_not_observed_and_no_prompt_is_not_chosen() -> None:
    some = order("Walk")
    some.learn(0, [])
    assert some.next(0) == []
    assert (some.state()["curriculum"]["observed"], some.state()["curriculum"]["chosen"]) == (0, 0)


def test_another_number_of_prompts_is_refused() -> None:
    assert "began with 8 training prompts, but now has 9" in refused(
        lambda: order("Walk", count=9).restore(order("Walk").state())
    )


def test_prompts_of_one_id_are_refused() -> None:
    curriculum = OwnCurriculum(by="tests.own_curricula:Walk")
    twice = [Prompt("a", "x"), Prompt("b", "y"), Prompt("a", "z")]
    assert "several prompts have the id 'a'" in refused(lambda: OwnOrder(curriculum, twice, 0))


CHOSEN = [
    (None, "choose() returned None; expected a list of 2 prompts' ids, such as ['p0']"),
    ("p1", "choose() returned 'p1'; expected a list of 2 prompts' ids"),
    ({"p1": 1, "p2": 1}, "expected a list of 2 prompts' ids"),
    (["p1"], "choose() returned 1 prompts; expected count=2. If too few are left, repeat some"),
    (["p1", "p2", "p3"], "choose() returned 3 prompts; expected count=2"),
    ([], "choose() returned 0 prompts; expected count=2"),
    (
        ["p1", "p9"],
        "choose() returned a str, 'p9', which is not an id of the 8 prompts; expected prompt.id of 2",
    ),
    ([0, 1], "choose() returned a int, 0, which is not an id of the 8 prompts"),
    (np.array([0, 1]), "choose() returned a int64, "),
    ([prompts(1)[0]] * 2, "choose() returned a Prompt, "),
]


@pytest.mark.parametrize(("chosen", "reason"), CHOSEN, ids=[str(index) for index in range(len(CHOSEN))])
def test_nonsense_for_prompts_is_refused(chosen: Any, reason: str) -> None:
    class Nonsense(Walk):
        def choose(self, prompts: Any, count: int, rng: Any) -> Any:
            return chosen

    assert reason in refused(lambda: order_of(Nonsense).next(2))


@pytest.mark.parametrize("chosen", [("p1", "p1"), np.array(["p1", "p1"]), [np.str_("p1"), "p1"]])
def test_each_list_of_ids_will_do(chosen: Any) -> None:
    class Repeats(Walk):
        def choose(self, prompts: Any, count: int, rng: Any) -> Any:
            return chosen

    assert order_of(Repeats).next(2) == [1, 1]


STATES = [
    ({"rates": {3: 0.5}}, "state()['rates'] has the key 3, of type int"),
    ({"seen": {"p1"}}, "state()['seen'] is {'p1'}, a set"),
    ([1, (2, 3)], "state()[1] is (2, 3), a tuple"),
    (float("nan"), "state() is nan, a float"),
    (np.float32(0.5), "a float32"),
    (np.zeros(2), "a ndarray"),
]


@pytest.mark.parametrize(("state", "reason"), STATES)
def test_a_state_that_json_would_lose_or_change_is_refused(state: Any, reason: str) -> None:
    class Stateful(Walk):
        def state(self) -> Any:
            return state

    message = refused(order_of(Stateful).state)
    assert reason in message and "Expected values that JSON keeps" in message


def test_a_state_that_holds_itself_is_refused() -> None:
    class Endless(Walk):
        def state(self) -> Any:
            endless: list[Any] = []
            endless.append(endless)
            return endless

    assert "Endless: state() raised RecursionError" in refused(order_of(Endless).state)


def test_a_load_state_that_forgets_is_refused() -> None:
    class Forgets(Retire):
        def load_state(self, state: Any) -> None:
            pass

    some = order_of(Forgets)
    some.restore(some.state())  # nothing to forget
    some.learn(1, [0.0])
    assert "after load_state(), state() returns {}, not the loaded state, {'p1': 1}" in refused(
        lambda: some.restore(some.state())
    )
    assert "after load_state()" in refused(lambda: order_of(Forgets).rehearse(2, 2))


def test_what_state_leaves_out_is_noticed_before_the_start() -> None:
    class Forgets(Walk):
        def state(self) -> Any:
            return {**super().state(), "past": 0}

    order("Walk").rehearse(4, 2)
    assert "a new object chooses other prompts after load_state()" in refused(
        lambda: order_of(Forgets).rehearse(4, 2)
    )


@pytest.mark.parametrize("method", ["choose", "observe", "state", "load_state", "metrics"])
def test_what_a_method_raises_names_the_class_and_the_method(method: str) -> None:
    def fail(*_: Any) -> Any:
        raise KeyError("mine")

    kind = type("Fails", (Retire,), {method: fail})
    message = refused(lambda: order_of(kind).rehearse(2, 2))
    assert message == f"curriculum={HERE}:Fails: {method}() raised KeyError: 'mine'"


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        (3, "metrics() returned 3; expected numbers by name"),
        ({1: 2.0}, "metrics() returned {1: 2.0}"),
        ({"left": float("inf")}, "left is inf; expected a finite number"),
        ({"left": "few"}, "left is 'few'; expected a finite number"),
    ],
)
def test_metrics_are_finite_numbers_by_name(metrics: Any, reason: str) -> None:
    class Tells(Retire):
        def metrics(self) -> Any:
            return metrics

    assert reason in refused(order_of(Tells).metrics)


def test_a_class_is_checked_with_its_options_before_the_start() -> None:
    place = "tests.own_curricula"
    curriculum = typed({"by": f"{place}:Retire", "after": 3})
    assert typed(curriculum.model_dump(mode="json")) == curriculum and curriculum.make().after == 3
    assert "unexpected keyword argument 'afer'" in refused(
        lambda: typed({"by": f"{place}:Retire", "afer": 3})
    )
    assert "has no class Retir" in refused(lambda: typed(f"{place}:Retir"))
    assert "is no curriculum: it lacks choose(prompts, count, rng), observe(prompt, scores)" in refused(
        lambda: typed("tests.kept_rollouts:Kept")
    )
    assert "curriculum=pas_rate: no such curriculum; did you mean 'pass_rate'?" in refused(
        lambda: typed("pas_rate")
    )
    assert "curriculum.least_share: got 0" in refused(lambda: typed({"least_share": 0}))
