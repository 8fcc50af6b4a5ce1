"""Demands of environments: refused at the door, before Ray, an engine or a game starts."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from contracts.errors import InputError
from contracts.settings import build
from learner.algorithms.ppo import PPO
from rollout_workers.environments.base import EnvironmentSettings
from services.config.settings import RunSettings
from services.training.preflight.checks.environment_checks import environment_warnings
from services.training.preflight.preflight import check
from tests.models import make_tiny_model
from tests.rollout_workers import gymnasium_worlds
from tests.services.test_cli import PROMISED_S, whetstone
from tests.services.training.preflight.test_preflight import refusal, settings

WORLDS = gymnasium_worlds.__name__
LAKE = {"id": "FrozenLake-v1", "observation_text": f"{WORLDS}:in_words", "actions": list("ldru")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


# Gymnasium


class Counted(gymnasium_worlds.Guess):
    """Knows how many of it were made and closed."""

    made: ClassVar[int] = 0
    closed_ones: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        Counted.made += 1

    def close(self) -> None:
        Counted.closed_ones += 1


def gymnasium_run(**options: Any) -> dict[str, Any]:
    return {"task": "episodes", "environment": {"name": "gymnasium_text", **options}}


def test_a_gymnasium_environment_is_made_and_closed(model: Path) -> None:
    check(settings(model, **gymnasium_run(class_path=f"{__name__}:Counted")))
    assert Counted.made == Counted.closed_ones > 0
    check(settings(model, **gymnasium_run(**LAKE)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**LAKE, "actions": []}, "environment.actions: got []; expected 4 different names"),
        (
            {"id": LAKE["id"], "actions": LAKE["actions"]},
            "environment.id=FrozenLake-v1: its observations are",
        ),
        ({**LAKE, "options": {"map_nam": "8x8"}}, "making it with {'map_nam': '8x8'} raised TypeError"),
        ({"class_path": f"{WORLDS}:Broken"}, "raised OSError: no display"),
    ],
)
def test_one_that_could_never_be_played_is_refused(
    model: Path, options: dict[str, Any], message: str
) -> None:
    assert message in refusal(model, **gymnasium_run(**options))


def test_the_command_says_so_at_once(model: Path) -> None:
    arguments = ("task=episodes", "environment=gymnasium_text", "environment.id=FrozenLake-v1")
    done = whetstone("train", f"model.path={model}", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("whetstone train: environment.id=FrozenLake-v1: its observations are Discrete")
    assert len(done.err.splitlines()) == 1 and done.cpu_s < PROMISED_S


# A frozen partner


Talk = Callable[..., dict[str, Any]]


@pytest.fixture(params=[{"name": "dialogue", "partner": "frozen"}, {"name": "program", "command": "true"}])
def talk(request: pytest.FixtureRequest) -> Talk:
    def of(partner: Path | str, **options: Any) -> dict[str, Any]:
        return {"environment": {**request.param, "partner_options": {"model": str(partner), **options}}}

    return of


def test_a_frozen_partners_files_are_read(model: Path, talk: Talk) -> None:
    check(settings(model, **talk(model)))


def test_a_frozen_partner_that_is_none_is_refused(model: Path, tmp_path: Path, talk: Talk) -> None:
    key = "environment.partner_options"
    nowhere = tmp_path / "no" / "where"
    assert f"{key}.model={nowhere}: there is no such folder" in refusal(model, **talk(nowhere))
    assert f"{key}.max_tokens=128 leaves no room" in refusal(model, **talk(model, max_tokens=128))

    weightless = make_tiny_model(tmp_path / "weightless")
    (weightless / "model.safetensors").unlink()
    assert f"{key}.model={weightless}: the weights are missing" in refusal(model, **talk(weightless))
    (weightless / "tokenizer.json").write_text("{}")
    make_tiny_model(tmp_path / "garbled")
    (tmp_path / "garbled" / "tokenizer.json").write_text("{}")
    assert "does not load" in refusal(model, **talk(tmp_path / "garbled"))

    reader = make_tiny_model(tmp_path / "reader", architecture="t5")
    assert f"{key}.model={reader} is an encoder-decoder (t5)" in refusal(model, **talk(reader))


# A task and its environment


class OwnGame(EnvironmentSettings):
    """One of a user's own, which may play TextWorld's games in a way of its own."""

    rewards_itself: ClassVar[bool] = True


@pytest.mark.parametrize("environment", ["single_turn", "dialogue"])
def test_games_are_not_made_for_an_environment_that_can_not_play_them(
    model: Path, tmp_path: Path, environment: str
) -> None:
    games = tmp_path / "games"
    task = {"name": "textworld", "games_dir": str(games)}
    message = refusal(model, task=task, environment=environment, reward="length")
    assert (
        message == f"environment={environment} can't play this task's prompts; expected environment=textworld"
    )
    assert not games.exists()
    settings(model, task=task, environment={"name": f"{__name__}:OwnGame"})


def test_the_command_names_the_environment_that_is_missing(model: Path) -> None:
    done = whetstone("train", f"model.path={model}", "task=textworld")
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("expected environment=textworld\n") and done.cpu_s < PROMISED_S


# One answer


@pytest.mark.parametrize(
    ("option", "value", "instead"),
    [
        ("reply_end", "\n", "rollout.stop, or an environment of several turns"),
        ("step_timeout_s", 5.0, "rollout.stall_timeout_s, or"),
        ("max_failures", 0, "reward_servers.max_failures, or"),
        ("memory", 3, "rollout.max_prompt_tokens, or"),
        ("max_turns", 3, "expected an environment of several turns: environment=NAME"),
        ("reward_at", "turn", "expected an environment of several turns"),
        ("example_rate", 0.5, "expected an environment of several turns"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    model: Path, option: str, value: Any, instead: str
) -> None:
    message = refusal(model, environment={"name": "single_turn", option: value})
    assert message.startswith(f"environment: {option}={value!r} does nothing if each prompt has one answer")
    assert instead in message


def test_one_answer_is_read_back_with_all_that_it_was_written_with(model: Path) -> None:
    written = settings(model).resolved()
    assert build(RunSettings, written, where="").resolved() == written


# Numbers


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_refused(model: Path, number: float) -> None:
    for key, changes in (
        ("environment.rewards.win", {"environment": {"name": "textworld", "rewards": {"win": number}}}),
        ("algorithm.learning_rate", {"algorithm": {"name": "ppo", "learning_rate": number}}),
        ("rollout.temperature", {"rollout": {"temperature": number}}),
    ):
        with pytest.raises(InputError) as caught:
            settings(model, **changes)
        assert key in str(caught.value) and "finite number" in str(caught.value)


# Two discounts


def playing(turn_gamma: float, **rewards: float) -> RunSettings:
    return settings(
        "model",
        task="textworld",
        environment={"name": "textworld", "rewards": rewards},
        algorithm={"name": "ppo", "turn_gamma": turn_gamma},
    )


def warnings(run: RunSettings) -> list[str]:
    return environment_warnings(run.environment, run.algorithm)


def test_progress_with_another_discount_than_the_algorithms_is_warned_of() -> None:
    (warning,) = warnings(playing(0.9, progress=1.0))
    assert warning.startswith(
        "environment.rewards.discount=1 discounts progress, and algorithm.turn_gamma=0.9"
    )
    assert warnings(playing(0.9, progress=1.0, discount=0.9)) == []
    assert warnings(playing(0.9)) == []
    assert warnings(settings("model")) == []
    assert PPO().turn_gamma == 1.0  # as the shaping's discount: what is not asked about is right
