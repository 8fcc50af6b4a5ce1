"""TextArena's own games, where it is installed: rules in front, messages once, rewards at the end."""

import random
from typing import Any

import pytest

from contracts.environments import Observation, Step
from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import build
from rollout_workers.environments.textarena import TextArena

pytest.importorskip("textarena")


def settings(name: str = "GuessTheNumber-v0-train", **options: Any) -> TextArena:
    return build(TextArena, {"id": name, **options}, "environment")


def prompt(seed: int = 3) -> Prompt:
    return Prompt(f"episodes/train/{seed}", "Play well.", meta={"seed": seed})


def begun(name: str = "GuessTheNumber-v0-train", seed: int = 3, **options: Any) -> tuple[Any, Observation]:
    play = settings(name, **options).make()
    return play, play.reset(prompt(seed), 0)


def secret(play: Any) -> int:
    return int(play._inner.game_number)


def test_the_rules_stand_in_front_and_the_players_own_words_are_not_said_back() -> None:
    play, seen = begun()
    assert seen.header.startswith("Play well.\nYou are Player 0. You are playing Guess The Number.\n")
    assert (seen.text, seen.hint) == ("", "")
    low = secret(play) - 1 or 2
    way = "higher" if low < secret(play) else "lower"
    step = play.step(f" {low} ")  # -train puts the brackets around it
    assert step == Step(
        Observation(f"The target number is {way}.\n"), 0.0, info={"steps": 1.0, "invalid": 0.0}
    )


def test_the_right_number_wins() -> None:
    play, _ = begun()
    step = play.step(str(secret(play)))
    assert (step.reward, step.terminated, step.truncated) == (1.0, True, False)
    assert step.observation.text == "Congratulations! You guessed the correct number.\n"


def test_an_invalid_move_is_said_and_counted_and_the_second_in_turn_ends_the_game() -> None:
    play, _ = begun()
    first, second = play.step("blue"), play.step("green")
    assert not first.terminated and first.observation.text.startswith("You attempted an invalid move.")
    assert first.info == {"steps": 1.0, "invalid": 1.0}
    assert second.terminated and second.info == {"steps": 2.0, "invalid": 1.0}
    assert second.observation.text.startswith("Invalid Move:")


def test_a_seed_begins_the_same_game_and_chance_outside_is_left_alone() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    play, _ = begun(seed=5)
    other, _ = begun(seed=5)
    assert secret(play) == secret(other)
    assert random.random() == expected
    assert len({secret(begun(seed=seed)[0]) for seed in range(12)}) > 3
    again = play.reset(prompt(5), 99)
    assert secret(play) == secret(other) and again.text == ""


def test_a_board_is_an_observation_and_a_puzzle_is_solved() -> None:
    play, seen = begun("TowerOfHanoi-v0")
    assert seen.header.endswith("At each turn, submit one move.\n")
    assert seen.text == "Current Board: \nA: [3, 2, 1]\nB: []\nC: []\n.\n"
    moves = ("A C", "A B", "C B", "A C", "B A", "B C", "A C")
    steps = [play.step(f"[{move}]") for move in moves]
    assert "You moved disk 1 from A to C.\nCurrent Board: \n" in steps[0].observation.text
    assert [step.terminated for step in steps] == [False] * 6 + [True]
    assert (steps[-1].reward, steps[-1].info) == (1.0, {"steps": 7.0, "invalid": 0.0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "GuessTheNumbr-v0"}, "has no game of this name; did you mean 'GuessTheNumber-v0'?"),
        ({"options": {"over": 3}}, "making it with {'over': 3} raised TypeError"),
        ({"name": "Nim-v0"}, "beginning it for one player raised AssertionError: The number of players"),
    ],
)
def test_what_can_not_be_played_is_refused_at_the_door(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        settings(**options).check()
    assert message in str(caught.value)


def test_a_game_for_one_passes() -> None:
    settings().check()
