import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from contracts.environments import Environment, Observation, Step
from contracts.errors import InputError
from contracts.rollout import Prompt
from rollout_workers.environments.textworld import REJECTED, GameRewards, TextWorld
from tests.games import WAY, prompt_of, tiny_game

pytestmark = pytest.mark.filterwarnings("ignore:Game .* is not fully supported")


@pytest.fixture(scope="module")
def game(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_game(tmp_path_factory.mktemp("games"))


def play(environment: Environment, game: Path, texts: Sequence[str], seed: int = 0) -> list[Step]:
    environment.reset(prompt_of(game), seed)
    return [environment.step(text) for text in texts]


# ---- a game ----


def test_an_observation_has_its_pieces_in_place(game: Path) -> None:
    environment = TextWorld().make()
    first = environment.reset(prompt_of(game), seed=0)
    assert "chest" in first.header and first.header.endswith("\n")
    assert first.text == "[Attic]\nA dusty room.\nThere is a toadstool on the floor.\n"
    assert first.hint == (
        "Your possible actions are go east, inventory, look, open chest, or take toadstool. "
        "You choose the action to"
    )
    assert first.expert == "open chest"
    assert first.actions == (
        "examine chest",
        "examine toadstool",
        "go east",
        "inventory",
        "look",
        "open chest",
        "take toadstool",
    )
    taken = environment.step(" take toadstool").observation
    assert taken.text == "You pick up the toadstool from the ground.\nYou are carrying: a toadstool.\n"
    assert taken.header == ""
    assert environment.step(" inventory").observation.text == "You are carrying: a toadstool.\n"  # once


def test_the_expert_wins_and_every_number_is_right(game: Path) -> None:
    # two points: the chest gives 1/2; the coin 1/2, and 1 for the win
    steps = play(TextWorld().make(), game, [f" {command}" for command in WAY])
    assert [step.reward for step in steps] == [0.5, 0.0, 1.5]
    assert [step.terminated for step in steps] == [False, False, True]
    assert steps[-1].info == {
        "won": 1.0,
        "lost": 0.0,
        "score": 1.0,
        "steps": 3.0,
        "invalid": 0.0,
        "walkthrough_length": 3.0,
    }
    assert "*** The End ***" in steps[-1].observation.text
    assert "RESTART" not in steps[-1].observation.text
    assert steps[-1].observation.hint == "" and steps[-1].observation.actions == ()


def test_a_lost_game_is_over(game: Path) -> None:
    steps = play(TextWorld().make(), game, ["take toadstool", "eat toadstool"])
    assert steps[-1].reward == -1.0 and steps[-1].terminated
    assert (steps[-1].info["won"], steps[-1].info["lost"]) == (0.0, 1.0)


def test_invalid_answers_cost_and_are_counted(game: Path) -> None:
    # refused by us, refused by the game, understood though in no list, refused by us
    steps = play(TextWorld().make(), game, ["save", "go west", "take the toadstool", ""])
    assert [step.reward for step in steps] == [-0.1, -0.1, 0.0, -0.1]
    assert [step.info["invalid"] for step in steps] == [1.0, 1.0, 2 / 3, 3 / 4]
    assert steps[0].observation.text == f"{REJECTED}\n"
    assert steps[1].observation.text != steps[0].observation.text
    assert steps[3].observation.text == f"{REJECTED}\nYou are carrying: a toadstool.\n"


def test_rewards_add_up_and_are_scaled(game: Path) -> None:
    rewards = GameRewards(score=2.0, win=2.0, loss=-2.0, turn=-0.1, invalid=-0.5, scale=10.0, shift=1.0)
    steps = play(TextWorld(rewards=rewards).make(), game, ["quit", *WAY])
    # 10 x (-0.1 - 0.5) + 1; 10 x (2/2 - 0.1) + 1; 10 x -0.1 + 1; 10 x (2/2 + 2 - 0.1) + 1
    assert [step.reward for step in steps] == pytest.approx([-5.0, 10.0, 0.0, 30.0])


def test_progress_is_a_potential(game: Path) -> None:
    shaped = TextWorld(rewards=GameRewards(score=0.0, win=0.0, loss=0.0, progress=1.0)).make()
    there_and_back = ["go east", "go west"]
    steps = play(shaped, game, [*there_and_back, *WAY])
    assert sum(step.reward for step in steps[:2]) == pytest.approx(0.0)
    assert sum(step.reward for step in steps) == pytest.approx(1.0)  # of any way that wins
    assert steps[2].reward == pytest.approx(1 / 3)  # three commands were needed, two are left
    assert sum(step.reward for step in play(shaped, game, ["take toadstool", "eat toadstool"])) == 0.0

    discounted = TextWorld(rewards=GameRewards(score=0.0, win=0.0, progress=3.0, discount=0.5)).make()
    # potentials -1, -2/3, -1/3, 0: 3 x (0.5 x -2/3 + 1), 3 x (0.5 x -1/3 + 2/3), 3 x 1/3
    assert [step.reward for step in play(discounted, game, WAY)] == pytest.approx([2.0, 1.5, 1.0])


def test_the_expert_knows_on_once_the_walkthrough_is_left_if_a_policy_is_followed(game: Path) -> None:
    away = ["look", "take toadstool"]
    on_it, off_it = play(TextWorld().make(), game, away)
    assert (on_it.observation.expert, off_it.observation.expert) == ("open chest", None)
    followed = play(TextWorld(rewards=GameRewards(progress=0.1)).make(), game, away)
    assert followed[-1].observation.expert == "open chest"


def with_walkthrough(game: Path, folder: Path, walkthrough: Sequence[str] | None) -> Path:
    shutil.copy(game, folder)
    known = json.loads(game.with_suffix(".json").read_text())
    known["metadata"]["walkthrough"] = walkthrough
    (folder / game.name).with_suffix(".json").write_text(json.dumps(known))
    return folder / game.name


def test_the_expert_does_not_open_what_is_open(game: Path, tmp_path: Path) -> None:
    opens_twice = with_walkthrough(game, tmp_path, ["open chest", *WAY])
    expert = [step.observation.expert for step in play(TextWorld().make(), opens_twice, WAY)]
    assert expert == ["go east", "take coin", None]


def test_a_game_without_a_walkthrough_is_followed(game: Path, tmp_path: Path) -> None:
    bare = with_walkthrough(game, tmp_path, None)
    environment = TextWorld().make()
    assert environment.reset(prompt_of(bare), 0).expert in WAY
    expert = [step.observation.expert for step in play(environment, bare, WAY)]
    assert expert == ["go east", "take coin", None]


def test_a_room_is_described_at_every_turn_if_asked_for(game: Path) -> None:
    environment = TextWorld(describe_room=True).make()
    assert environment.reset(prompt_of(game), 0).text.count("A dusty room.") == 1
    assert environment.step("open chest").observation.text == (
        "You open the chest.\nYour score has just gone up by one point.\n"
        "[Attic]\nA dusty room.\nThere is a toadstool on the floor.\n"
    )
    assert environment.step("go east").observation.text.count("A damp room.") == 1


def test_hints_are_what_was_asked_for(game: Path) -> None:
    def first(seed: int = 0, **options: object) -> Observation:
        return TextWorld.model_validate(options).make().reset(prompt_of(game), seed)

    assert first(hints="none").hint == "You choose the action to"
    assert "examine chest" in first(hidden_verbs=[]).hint
    hidden = first(hidden_verbs=["examine", "look", "inventory"])
    assert hidden.hint.startswith("Your possible actions are go east, open chest, or take toadstool.")
    assert "examine chest" in hidden.actions
    shuffled = {first(seed, hints="shuffled").hint for seed in range(8)}
    assert len(shuffled) > 4
    assert first(3, hints="shuffled") == first(3, hints="shuffled")
    capped = [first(seed, hints_cap=2).hint for seed in range(40)]
    assert all(hint.startswith("Your possible actions are ") and hint.count(" or ") == 1 for hint in capped)
    assert 5 < sum("open chest" in hint for hint in capped) < 30  # expected: 2/5 of 40
    assert first(objective="hidden").header == ""


def test_hostile_answers_leave_game_and_tracker_in_step(
    game: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the interpreter would write
    hostile = [
        "quit",
        "y",
        "restart",
        "y",
        "save",
        "x.sav",
        "script",
        "t",
        "look. save",
        "look\nquit",
        "undo",
    ]
    hostile += [
        "take all",
        "take toadstool. eat toadstool",
        "tw-trace-actions",
        "again",
        "open chest",
        "go east",
    ]
    hostile += ["take feather and shelf"]  # of this as a whole the game does one half, and the tracker none
    environment = TextWorld().make()
    steps = play(environment, game, [*hostile, "take coin"])
    assert {"drop toadstool", "drop feather"} <= set(steps[-2].observation.actions)
    assert "a feather" in steps[-2].observation.text and "a toadstool" in steps[-2].observation.text
    assert steps[-1].info["won"] == 1.0
    assert list(tmp_path.iterdir()) == []


def test_an_episode_is_the_same_in_another_process(game: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from rollout_workers.environments.textworld import TextWorld\n"
        "from tests.rollout_workers.test_textworld import play\n"
        "environment = TextWorld(hints='shuffled', hints_cap=3).make()\n"
        "print(play(environment, Path(sys.argv[1]), sys.argv[2:], seed=7))"
    )
    commands = ["look", "take toadstool", "nonsense", "open chest", "go east"]
    process = subprocess.run(
        [sys.executable, "-c", program, str(game), *commands],
        env={**os.environ, "PYTHONHASHSEED": "123"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    here = TextWorld(hints="shuffled", hints_cap=3).make()
    play(here, game, ["go east", "eat toadstool"], seed=1)  # an episode before leaves nothing behind
    assert process.strip() == str(play(here, game, commands, seed=7))


# ---- bad input ----


def _without_json(story: Path) -> None:
    story.with_suffix(".json").unlink()


def _without_story(story: Path) -> None:
    story.unlink()


def _cut_short(story: Path) -> None:
    story.write_bytes(story.read_bytes()[:200_000])


def _one_byte_changed(story: Path) -> None:
    data = bytearray(story.read_bytes())
    data[100_000] ^= 1
    story.write_bytes(data)


def _no_game(story: Path) -> None:
    story.write_text("hello")


def _bad_json(story: Path) -> None:
    story.with_suffix(".json").write_text("{")


def _other_json(story: Path) -> None:
    story.with_suffix(".json").write_text(json.dumps({"name": "tiny"}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without_json, "there is no file .*tiny.json"),
        (_without_story, "there is no file .*tiny.z8"),
        (_cut_short, "damaged"),
        (_one_byte_changed, "damaged"),
        (_no_game, "damaged"),
        (_bad_json, "is not JSON"),
        (_other_json, "is not a TextWorld game's description"),
    ],
)
def test_a_bad_game_is_refused_in_words(
    game: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    for suffix in (".z8", ".json"):
        shutil.copy(game.with_suffix(suffix), tmp_path)
    story = tmp_path / game.name
    damage(story)
    environment = TextWorld().make()
    with pytest.raises(InputError, match=message):
        environment.reset(prompt_of(story), 0)
    assert environment.reset(prompt_of(game), 0).text  # and can still be used


def test_a_prompt_must_name_a_game(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="names no game"):
        TextWorld().make().reset(Prompt("numbers/train/0", "1 2 3"), 0)
    with pytest.raises(InputError, match=r"expected a \.z8 file"):
        TextWorld().make().reset(prompt_of(tmp_path / "game.ulx"), 0)


def test_without_the_library_it_says_what_to_install(game: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(InputError, match=r"pip install whetstone\[games\]"):
        TextWorld().make().reset(prompt_of(game), 0)


def test_settings_do_not_need_the_library() -> None:
    program = (
        "import sys, rollout_workers.environments.textworld, services.data.tasks.textworld\n"
        "assert 'textworld' not in sys.modules and 'jericho' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
