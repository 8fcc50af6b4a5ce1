"""Worth of a value in the sum, and each part's share of the reward."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward_servers.settings import Part, parts
from reward_servers.shaping import contribution, shaped, shares

VALUES = st.floats(-1e6, 1e6)


def part(**options: Any) -> Part:
    (reward,) = parts({"name": "length", **options})
    return reward


@pytest.mark.parametrize(
    ("options", "value", "expected"),
    [
        ({}, 0.3, 0.3),
        ({"clip": [0, 1]}, -0.5, 0.0),
        ({"clip": [0, 1]}, 1.5, 1.0),
        ({"clip": [None, 1]}, -5.0, -5.0),
        ({"threshold": 0.3}, 0.3, 1.0),  # the threshold itself passes
        ({"threshold": 0.3}, 0.29, 0.0),
        ({"standardize": {"mean": 10, "std": 4}}, 12.0, 0.5),
        (
            {"standardize": {"mean": 10, "std": 4}, "clip": [-2, 2]},
            100.0,
            2.0,
        ),  # clipped when standardised
        ({"standardize": {"mean": 10, "std": 4}, "threshold": 1.0}, 13.9, 0.0),  # 0.975 of a deviation
        ({"standardize": {"mean": 10, "std": 4}, "threshold": 1.0}, 14.0, 1.0),
    ],
)
def test_shapes_by_hand(options: dict[str, Any], value: float, expected: float) -> None:
    assert shaped(part(**options), value) == expected
    assert contribution(part(weight=-0.5, **options), value) == -0.5 * expected


@given(st.lists(VALUES, min_size=2), VALUES, st.floats(0.001, 1e3), st.floats(-10, 0), st.floats(0.1, 10))
def test_a_shape_keeps_the_order_and_its_bounds(
    values: list[float], mean: float, std: float, low: float, high: float
) -> None:
    shape = part(standardize={"mean": mean, "std": std}, clip=[low, high])
    worth = [shaped(shape, value) for value in sorted(values)]
    assert worth == sorted(worth)
    assert low <= worth[0] and worth[-1] <= high


def test_shares_by_hand() -> None:
    reward = parts(
        [
            {"name": "rouge", "weight": 0.5},
            {"name": "length", "weight": 0.1, "clip": [0, 10]},
            {"name": "dates", "weight": -1.0},
        ]
    )
    rows = [{"rouge": 0.5, "length": 30.0, "dates": 0.0}, {"rouge": 0.25, "length": 5.0, "dates": 1.0}]
    # rouge 0.25 + 0.125; length 1 + 0.5; dates 0 + |-1|: 2.875 in all
    assert shares(reward, rows) == {
        "reward/rouge/share": pytest.approx(0.375 / 2.875),
        "reward/length/share": pytest.approx(1.5 / 2.875),
        "reward/dates/share": pytest.approx(1.0 / 2.875),
    }


def test_nothing_has_no_shares() -> None:
    two = parts(["rouge", "length"])
    assert shares(two[:1], [{"rouge": 1.0}]) == {}  # one part is all of it
    assert shares(two, []) == {}
    assert shares(two, [{}]) == {}  # texts that nobody scored, as in supervised training
    assert shares(two, [{"rouge": 0.0, "length": 0.0}]) == {
        "reward/rouge/share": 0.0,
        "reward/length/share": 0.0,
    }


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1), st.randoms())
def test_shares_sum_to_one_in_any_order(rows: list[tuple[float, float]], random: Any) -> None:
    reward = parts([{"name": "rouge", "weight": -2.0}, "length"])
    named = [{"rouge": first, "length": second} for first, second in rows]
    before = shares(reward, named)
    assert sum(before.values()) in (0.0, pytest.approx(1.0))
    random.shuffle(named)
    assert shares(reward, named) == before  # to the last bit: a resumed run logs the same
