"""Values of Python reach the configuration as they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.config.override_words import parse
from whetstone.errors import InputError
from whetstone.overrides import words


@pytest.mark.parametrize(
    "value",
    [
        *(5, 1e-5, -2.5, True, None),
        *("", "gpt2", "3", "null", "a b", "a=b,c", "{x: 1}", "two\nlines", "ä $ #"),
        *('say "no"', "it's", "C:\\", r"\d+ \"", '\\"', "\\\\"),
        *([], [1, "a"], {"name": "length", "clip": [0, None]}, [{"name": "rouge", "weight": 0.5}, "length"]),
    ],
)
def test_a_value_is_read_back_as_it_was_given(value: Any) -> None:
    (word,) = words({"a__b": value})
    override = parse(word)
    assert (override.key_or_group, _plain(override.value())) == ("a.b", value)
    assert not override.is_sweep_override()


def _plain(value: Any) -> Any:
    """Hydra keeps the quotes of texts within a list or a mapping beside them."""
    if isinstance(value, list):
        return [_plain(element) for element in value]
    if isinstance(value, dict):
        return {key: _plain(element) for key, element in value.items()}
    return getattr(value, "text", value)


def test_numbers_of_libraries_and_paths_are_taken() -> None:
    assert words({"seed": np.int64(3), "rate": np.float64(0.5), "output_dir": Path("runs")}) == [
        "seed=3",
        "rate=0.5",
        'output_dir="runs"',
    ]


def test_keys_may_have_their_dots() -> None:
    assert words({"algorithm.kl.coefficient": 0.0}) == ["algorithm.kl.coefficient=0.0"]


def test_what_no_configuration_holds_is_refused() -> None:
    with pytest.raises(InputError, match="stop: got <object"):
        words({"stop": object()})


class Retire:
    """A curriculum, for example."""


@pytest.mark.parametrize("key", ["curriculum", "rollout__engine", "model__policy"])
def test_an_object_in_place_of_its_class_is_answered_with_the_class(key: str) -> None:
    dotted = key.replace("__", r"\.")
    with pytest.raises(
        InputError, match=rf"{dotted}: got <.*; expected the class itself, {dotted}=Retire, if"
    ):
        words({key: Retire()})
    with pytest.raises(InputError, match=r"got \{3\}; expected text"):
        words({key: {3}})
