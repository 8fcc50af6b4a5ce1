"""Examples of docs/environments.md and docs/dialogues.md, run as they stand there."""

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.rollout import Prompt
from rollout_workers.environments.dialogue import Dialogue
from services.config.compose import run_settings
from services.config.settings import RunSettings
from tests.models import make_tiny_model
from tests.rollout_workers.episodes import WritingEngine, lease, play

PAGES = [
    (Path(__file__).parents[2] / f"docs/{name}.md").read_text() for name in ("environments", "dialogues")
]
MODULES = {
    name: body
    for page in PAGES
    for name, body in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", page, re.DOTALL)
}
COMMANDS = [
    shlex.split(command.replace("\\\n", " "))[2:]
    for page in PAGES
    for shown in re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    for command in re.findall(r"^whetstone train (?:.*\\\n)*.*$", shown, re.MULTILINE)
    if "…" not in command
]


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, body in MODULES.items():
        (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("model")
    words = (
        "I",
        "think",
        "of",
        "a",
        "number.",
        "Your",
        "guess:",
        "More.",
        "Less.",
        "That",
        "is",
        "no",
        "Right.",
    )
    return AutoTokenizer.from_pretrained(make_tiny_model(folder, vocab=(*words, *map(str, range(16)))))


def settings_of(words: str) -> RunSettings:
    (command,) = [command for command in COMMANDS if words in " ".join(command)]
    return run_settings(command)


def test_the_pages_show_what_is_tested_here() -> None:
    assert sorted(MODULES) == ["my_guess", "my_lake", "my_partner"]
    assert len(COMMANDS) == 8


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_is_a_valid_run(command: list[str]) -> None:
    assert run_settings(command).plays


def test_options_and_their_defaults_are_those_of_the_classes() -> None:
    from rollout_workers.environments.base import EnvironmentSettings
    from rollout_workers.environments.gymnasium_text import GymnasiumText
    from rollout_workers.environments.open_reward import OpenReward
    from rollout_workers.environments.openenv import OpenEnv
    from rollout_workers.tools.calling import CallSettings

    named = {name for page in PAGES for name in re.findall(r"`environment\.(\w+)`", page)}
    kinds = (EnvironmentSettings, GymnasiumText, Dialogue, OpenEnv)
    fields = {name for kind in kinds for name in kind.model_fields}
    fields |= OpenReward.model_fields.keys() - CallSettings.model_fields.keys()
    assert named - fields == set() and fields - named == set()
    for line in PAGES[0].splitlines():
        if (row := re.match(r"(?:\| )?`environment\.(\w+)` \| `?([\w.]+)`? \|", line)) is not None:
            default = (EnvironmentSettings | GymnasiumText).__args__  # type: ignore[attr-defined]
            field = next(kind.model_fields[row[1]] for kind in default if row[1] in kind.model_fields)
            assert str(field.default).replace("True", "true").removesuffix(".0") in (
                {"null": "None", "nothing": ""}.get(row[2], row[2]),
            ), line


# Guessing a number


def test_the_number_is_found_by_halving_and_the_task_holds_seeds_out(tokenizer: Any) -> None:
    """16 numbers, five guesses: the expert needs four or five at most, 15 needs all five."""
    run = settings_of("my_guess:Guess")
    assert run.reward == () and run.environment.has_baselines
    engine = WritingEngine(tokenizer, 100, lambda request: ())
    numbers = set()
    for row, prompt in enumerate(run.task.prompts("train")[:40]):
        (rollout,) = play(run.environment, engine, [replace(lease(row, player="expert"), prompt=prompt)])
        assert rollout.info["won"] == 1.0 and rollout.total_reward == 1.0
        assert rollout.turns[0].observation_text == "I think of a number. Your guess:"
        numbers.add(rollout.turns[-1].text)
    assert len(numbers) > 8 and not engine.requests


def test_chance_finds_it_less_often(tokenizer: Any) -> None:
    """Five of sixteen guesses, with repetitions: 1 - (15/16)^5 = 0.28."""
    run = settings_of("my_guess:Guess")
    engine = WritingEngine(tokenizer, 100, lambda request: ())
    leases = [
        replace(lease(row, player="random"), prompt=prompt)
        for row, prompt in enumerate(run.task.prompts("train")[:200])
    ]
    won = [rollout.info["won"] for rollout in play(run.environment, engine, leases)]
    assert 0.18 < sum(won) / len(won) < 0.38


def test_what_is_no_number_costs_something() -> None:
    game = settings_of("my_guess:Guess").environment.make()
    game.reset(Prompt("p", "Find it."), 3)
    step = game.step(" seven")
    assert step.reward == -0.1 and step.observation.text == "That is no number. Your guess:"


# Gymnasium's frozen lake


def test_the_lake_is_crossed_in_six_steps() -> None:
    """Two down, one right, one down, two right: the way around the holes of Gymnasium's own 4x4 map."""
    run = settings_of("FrozenLake-v1")
    world = run.environment.make()
    seen = world.reset(run.task.prompts("train")[0], 0)
    assert seen.header == "The goal is in row 3, column 3.\n"
    assert seen.text == "You are in row 0, column 0.\n"
    assert seen.hint == "You can: left, down, right, up.\n"
    steps = [world.step(f" {way}") for way in ("down", "down", "right", "down", "right", "right")]
    assert [step.observation.text for step in steps[-2:]] == [
        "You are in row 3, column 2.\n",
        "You are in row 3, column 3.\n",
    ]
    assert [(step.reward, step.terminated) for step in steps[-2:]] == [(0.0, False), (1.0, True)]


# Talks


def test_the_curious_partner_asks_about_the_longest_word() -> None:
    talk = settings_of("my_partner:Curious").environment.make()
    talk.reset(Prompt("p", "Hi . <EOU>"), 0)
    assert talk.step(" I lost my keyring .").observation.text == " Why keyring ? <EOU>"
    assert talk.step("").terminated


def test_the_experiment_of_self_play_is_what_its_head_says() -> None:
    runs = [run_settings(command) for command in COMMANDS if command[0].endswith("daily_dialog_self_play")]
    assert [run.environment.partner for run in runs] == ["self", "frozen", "my_partner:Curious"]  # type: ignore[attr-defined]
    assert all(run.environment.reward_at == "turn" and run.environment.max_turns == 4 for run in runs)
    assert all(run.rollout.stop == ("<EOU>",) for run in runs)
    assert runs[0].run_name == "daily_dialog-self_play-seed0"
