"""Gymnasium's environments as ours: texts, names of actions, numbers, seeds, and what is refused."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.environments import Environment, Observation
from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import build
from rollout_workers.environments.gymnasium_text import GymnasiumText
from tests.models import make_tiny_model
from tests.rollout_workers import gymnasium_worlds
from tests.rollout_workers.episodes import WritingEngine, lease, play

WORLDS = gymnasium_worlds.__name__
PROMPT = Prompt("episodes/train/0", "Find it.", meta={"seed": 4})
NAMED = {"actions": ["Go left", "go right"], "observation_text": f"{WORLDS}:in_words"}


def world(name: str = "Guess", **options: Any) -> Environment:
    return build(GymnasiumText, {"class_path": f"{WORLDS}:{name}", **options}, "environment").make()


def begun(name: str = "Guess", prompt: Prompt = PROMPT, **options: Any) -> Any:
    environment = world(name, **options)
    environment.reset(prompt, 0)
    return environment


def secret(environment: Any) -> int:
    return int(environment._world.unwrapped.number)


def refusal(**options: Any) -> str:
    with pytest.raises(InputError) as caught:
        build(GymnasiumText, options, "environment").make()
    return str(caught.value)


# Texts


def test_the_prompt_stands_in_front_and_the_world_speaks_behind_it() -> None:
    seen = world().reset(PROMPT, 0)
    assert seen == Observation("guess a number below 10.\n", header="Find it.\n")
    assert world().reset(Prompt("p", ""), 0).header == ""


@given(guess=st.integers(0, 9), seed=st.integers(0, 2**63 - 1), blanks=st.sampled_from(["", " ", "\n "]))
def test_an_answer_leads_where_it_leads_in_the_environment_itself(guess: int, seed: int, blanks: str) -> None:
    bare = gymnasium_worlds.Guess()
    bare.reset(seed=seed)
    text, reward, terminated, truncated, _ = bare.step(str(guess))
    environment = begun(prompt=Prompt("p", "", meta={"seed": seed}))
    step = environment.step(f"{blanks}{guess}{blanks}")
    assert step.observation.text == f"{text}\n"
    assert (step.reward, step.terminated, step.truncated) == (reward, terminated, truncated)


def test_only_finite_numbers_are_logged() -> None:
    environment = begun()
    wrong = str((secret(environment) + 1) % 10)
    assert environment.step(wrong).info == {"tries": 1.0, "won": 0.0, "steps": 1, "invalid": 0.0}
    last = environment.step(str(secret(environment)))
    assert last.terminated and last.reward == 1.0 and last.observation.text == "found!\n"
    assert last.info == {"tries": 2.0, "won": 1.0, "steps": 2, "invalid": 0.0}


def test_a_cut_is_no_end() -> None:
    environment = begun()
    wrong = str((secret(environment) + 1) % 10)
    steps = [environment.step(wrong) for _ in range(3)]
    assert [(step.terminated, step.truncated) for step in steps] == [(False, False)] * 2 + [(False, True)]


def test_an_answer_that_is_no_action_does_not_reach_the_world() -> None:
    """One of two answers: not in the space, whose charset is digits, three at most."""
    environment = begun(invalid_reward=-0.5)
    step = environment.step(" the number\nis seven ")
    assert step.observation.text == "'the number is seven' is no action here.\nguess a number below 10.\n"
    assert (step.reward, step.terminated, step.truncated) == (-0.5, False, False)
    assert step.info == {"steps": 1, "invalid": 1.0}
    assert environment._world.unwrapped.tries == 0
    assert environment.step("1234").info["invalid"] == 1.0 and environment.step("").info["invalid"] == 1.0
    assert environment.step("7").info["invalid"] == 0.75
    environment.reset(PROMPT, 0)
    assert environment.step("7").info["invalid"] == 0.0


# Seeds


def test_a_prompt_is_one_episode_whoever_plays_it() -> None:
    """So the rollouts of a group are of the same episode, though each has a lease with a seed of its own."""
    environment: Any = world()

    def seeds(prompt: Prompt) -> set[int]:
        observations = set()
        for of_lease in (7, 8, 9):
            environment.reset(prompt, of_lease)
            observations.add(environment._world.unwrapped.seed)
        return observations

    assert seeds(Prompt("p", "", meta={"seed": 4})) == {4}
    assert seeds(Prompt("p", "", meta={"seed": 0})) == {0}
    (without,), (other,) = seeds(Prompt("p", "")), seeds(Prompt("q", ""))
    assert without != other and 0 <= without < 2**31
    environment.reset(Prompt("p", "", meta={"options": {"cell": 2}}), 1)
    assert environment._world.unwrapped.options == {"cell": 2}


@pytest.mark.parametrize("seed", [-1, "4", 1.5, True])
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    with pytest.raises(InputError, match="prompt p: its seed is"):
        world().reset(Prompt("p", "", meta={"seed": seed}), 0)


# Names of actions


def test_numbered_actions_have_names_and_the_mask_says_which_are_possible() -> None:
    environment = world("Corridor", **NAMED)
    seen = environment.reset(PROMPT, 0)
    assert seen.text == "You are in cell 0.\n"
    assert (seen.actions, seen.hint) == (("go right",), "You can: go right.\n")
    step = environment.step(" GO  right")
    assert step.observation.text == "You are in cell 1.\n"
    assert step.observation.actions == ("Go left", "go right")
    assert step.observation.hint == "You can: Go left, go right.\n"
    assert environment.step("go left").observation.text == "You are in cell 0.\n"
    refused = environment.step("jump").observation
    assert refused.text == "'jump' is no action here.\nYou are in cell 0.\n" and refused.actions == (
        "go right",
    )


def test_without_a_mask_all_names_are_possible_and_hints_can_be_left_out() -> None:
    seen = world("Corridor", hint=False, options={"masked": False}, **NAMED).reset(PROMPT, 0)
    assert (seen.actions, seen.hint) == (("Go left", "go right"), "")


def test_options_of_the_reset_come_with_the_prompt() -> None:
    environment = begun("Corridor", Prompt("p", "", meta={"options": {"cell": 2}}), **NAMED)
    assert environment.step("go right").terminated


def test_admissible_commands_are_told_and_others_reach_the_world_all_the_same() -> None:
    environment = world("Quest")
    seen = environment.reset(PROMPT, 0)
    assert (seen.actions, seen.hint) == (("go east", "look"), "You can: go east, look.\n")
    step = environment.step("go west")
    assert step.observation == Observation("you go west\n") and step.info["invalid"] == 0


# Finding it


def test_a_registered_environment_is_found_by_its_id_with_its_module_in_front() -> None:
    settings = build(GymnasiumText, {"id": f"{WORLDS}:WhetstoneTestGuess-v0", "options": {"below": 5}}, "")
    environment = settings.make()
    assert environment.reset(PROMPT, 0).text == "guess a number below 5.\n"
    steps = [environment.step("9"), environment.step("9")]
    assert [step.truncated for step in steps] == [False, True]  # as it was registered: two steps


def test_it_is_made_in_another_process_than_its_settings() -> None:
    settings = build(GymnasiumText, {"class_path": f"{WORLDS}:Corridor", **NAMED}, "environment")
    assert pickle.loads(pickle.dumps(settings)).make().reset(PROMPT, 0).actions == ("go right",)


def test_closing_closes_it() -> None:
    environment: Any = world()
    inner = environment._world
    environment.close()
    assert inner.closed


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "got id=None and class_path=None; expected one of them"),
        ({"id": "CartPole-v1", "class_path": "a:B"}, "got id='CartPole-v1' and class_path='a:B'"),
        ({"id": "CartPol-v1"}, "environment.id=CartPol-v1: Environment `CartPol` doesn't exist"),
        ({"id": "no_games:Maze-v0"}, "environment.id=no_games:Maze-v0: importing no_games failed"),
        ({"class_path": "games.Maze"}, "environment.class_path=games.Maze: a class is written"),
        ({"class_path": f"{WORLDS}:Gues"}, "has no class Gues; did you mean 'Guess'?"),
        ({"class_path": f"{WORLDS}:NoEnvironment"}, "NoEnvironment is not a gymnasium.Env"),
        (
            {"class_path": f"{WORLDS}:Guess", "options": {"over": 3}},
            "Guess: making it with {'over': 3} raised TypeError",
        ),
        ({"class_path": f"{WORLDS}:Broken"}, "raised OSError: no display"),
        (
            {"id": "CartPole-v1", "actions": ["left", "right"]},
            "environment.id=CartPole-v1: its observations are Box(",
        ),
        (
            {"class_path": f"{WORLDS}:Guess", "observation_text": f"{WORLDS}:no_words"},
            f"environment.observation_text={WORLDS}:no_words: {WORLDS} has no function no_words",
        ),
        (
            {"class_path": f"{WORLDS}:Guess", "observation_text": "in_words"},
            "a function is written package.module:function",
        ),
        ({"class_path": f"{WORLDS}:Continuous"}, "environment: its actions are Box("),
        ({"class_path": f"{WORLDS}:Guess", "actions": ["7"]}, "got ['7']; its actions are texts: Text("),
        (
            {"class_path": f"{WORLDS}:Corridor", **NAMED, "actions": ["left"]},
            "environment.actions: got ['left']; expected 2 different names, one for each action of Disc",
        ),
        (
            {"class_path": f"{WORLDS}:Corridor", **NAMED, "actions": ["left", "Left "]},
            "expected 2 different names",
        ),
    ],
)
def test_what_can_not_be_played_is_refused_with_the_remedy(options: dict[str, Any], expected: str) -> None:
    assert expected in refusal(**options)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "Old",
            r"step\(\) gave \('higher', 0.0, False, \{\}\) \(tuple\); expected \(observation, reward, term",
        ),
        ("Numb", r"an observation gave 3 \(int\); expected a text"),
        ("Priceless", r"step\(\)'s reward gave None \(NoneType\); expected a finite number"),
    ],
)
def test_an_environment_of_another_form_is_refused(name: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        begun(name).step("3")


def test_a_reset_of_another_form_is_refused() -> None:
    with pytest.raises(InputError, match=r"reset\(\) gave 'guess' \(str\); expected \(observation, info\)"):
        begun("Older")


def test_a_mask_of_another_length_is_refused() -> None:
    environment = world("Corridor", **NAMED)
    environment._world._seen = lambda: ([0.0], {"action_mask": [1, 0, 1]})  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"info\['action_mask'\] has 3 entries for 2 actions"):
        environment.reset(PROMPT, 0)


# Played


def test_an_episode_from_its_prompt_to_its_rollout(tmp_path: Any) -> None:
    """A corridor of three steps, one of them no action; what the world said is never trained on."""
    from transformers import AutoTokenizer

    words = (
        "find",
        "the",
        "end.",
        "you",
        "are",
        "in",
        "cell",
        "0.",
        "1.",
        "2.",
        "3.",
        "can:",
        "go",
        "right.",
    )
    make_tiny_model(tmp_path, vocab=(*words, "left,", "right", "fly"))
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path)
    answers = iter(["go right", "fly", "go right", "go right"])
    engine = WritingEngine(tokenizer, None, lambda _: tuple(tokenizer(next(answers))["input_ids"]))
    settings = build(GymnasiumText, {"class_path": f"{WORLDS}:Corridor", "reply_end": "", **NAMED}, "")
    (rollout,) = play(settings, engine, [replace(lease(), prompt=Prompt("p", "find the end."))])
    assert [turn.text for turn in rollout.turns] == ["go right", "fly", "go right", "go right"]
    assert tokenizer.decode(
        [t for t, mine in zip(rollout.tokens, rollout.loss_mask, strict=True) if mine]
    ) == ("go right fly go right go right")
    assert rollout.info == {"steps": 4, "invalid": 0.25} and not rollout.truncated_context
