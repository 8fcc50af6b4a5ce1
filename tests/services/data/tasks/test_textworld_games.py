import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import build
from rollout_workers.environments.textworld import TextWorld as Environment
from services.data.tasks import textworld_games
from services.data.tasks.base import SPLITS
from services.data.tasks.textworld import TextWorld
from services.data.tasks.textworld_games import Recipe, Shelf, fill, make_games

pytestmark = pytest.mark.filterwarnings("ignore:Game .* is not fully supported")

SMALL = {"challenge": "coin_collector", "level": 1, "max_level": 2}
SMALL |= {"num_train": 3, "num_validation": 1, "num_test": 1}


def task(**options: Any) -> TextWorld:
    return build(TextWorld, options, "task")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five games, really made."""
    folder = tmp_path_factory.mktemp("pool")
    task(**SMALL, games_dir=str(folder)).prompts("train")
    return folder


def all_prompts(pool: Path, **options: Any) -> list[Prompt]:
    made = task(**{**SMALL, **options}, games_dir=str(pool))
    return [prompt for split in SPLITS for prompt in made.prompts(split)]


# ---- games that are really made ----


def test_a_pool_is_dealt_to_splits_and_levels_and_no_game_is_twice(pool: Path) -> None:
    prompts = all_prompts(pool)
    assert [prompt.id for prompt in prompts] == [
        "textworld/train/0",
        "textworld/train/1",
        "textworld/train/2",
        "textworld/validation/0",
        "textworld/test/0",
    ]
    assert [prompt.meta["level"] for prompt in prompts] == [1, 2, 1, 1, 1]
    assert [prompt.meta["walkthrough"] for prompt in prompts] == [1, 2, 1, 1, 1]
    assert prompts[1].text == "coin_collector, level 2, seed 0"
    assert len({Path(prompt.meta["game"]).read_bytes() for prompt in prompts}) == 5
    assert list(pool.glob("**/.making-*")) == []


def test_the_expert_wins_every_game(pool: Path) -> None:
    environment = Environment().make()
    for prompt in all_prompts(pool):
        observation = environment.reset(prompt, 0)
        for _ in range(prompt.meta["walkthrough"]):
            assert observation.expert is not None
            step = environment.step(observation.expert)
            observation = step.observation
        assert step.terminated and step.info["won"] == 1.0 and step.info["invalid"] == 0.0


def test_a_pool_is_found_again_and_grows_without_changing(
    pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(games_dir: Path, recipes: Sequence[Recipe]) -> None:
        raise AssertionError(f"{len(recipes)} games made again")

    before = all_prompts(pool)
    monkeypatch.setattr(textworld_games, "make_games", refuse)
    assert all_prompts(pool) == before
    with pytest.raises(AssertionError, match="1 games made again"):
        all_prompts(pool, num_train=4)


def test_a_game_is_the_same_whenever_and_wherever_it_is_made(pool: Path, tmp_path: Path) -> None:
    """Alone instead of among others, on another day (the compiler writes it down), with another hash seed."""
    folder = Path(all_prompts(pool)[1].meta["game"]).parent
    recipe = json.loads((folder / "manifest.json").read_text())["recipe"]
    again = tmp_path / "again"
    subprocess.run(
        [sys.executable, "-m", "services.data.tasks.textworld_maker"],
        input=json.dumps({"folder": str(again), "recipe": recipe}) + "\n",
        env={**os.environ, "PYTHONHASHSEED": "0", "TZ": _elsewhere()},
        text=True,
        check=True,
        capture_output=True,
    )
    for name in ("game.z8", "game.json", "manifest.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def _elsewhere() -> str:
    """A time zone with another date than here: one of these two always has."""
    here = time.strftime("%d")
    east = time.strftime("%d", time.gmtime(time.time() + 14 * 3600))
    return "Pacific/Kiritimati" if east != here else "Etc/GMT+12"


def test_a_game_that_was_changed_or_deleted_is_named(pool: Path, tmp_path: Path) -> None:
    copy = tmp_path / "pool"
    shutil.copytree(pool, copy)
    story = Path(all_prompts(copy)[0].meta["game"])
    story.write_bytes(story.read_bytes()[:-1])
    with pytest.raises(InputError, match="was changed since it was made; delete the folder"):
        all_prompts(copy)
    story.unlink()
    with pytest.raises(InputError, match="was deleted since it was made"):
        all_prompts(copy)
    (story.parent / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="can't be read"):
        all_prompts(copy)


@pytest.mark.long
def test_a_killed_maker_leaves_no_half_game(tmp_path: Path) -> None:
    recipe = Recipe("coin_collector", 5, "brief", {"level": 1})
    folder = tmp_path / recipe.folder
    maker = subprocess.Popen(
        [sys.executable, "-m", "services.data.tasks.textworld_maker"], stdin=subprocess.PIPE
    )
    assert maker.stdin is not None
    maker.stdin.write(json.dumps({"folder": str(folder), "recipe": recipe.as_json()}).encode() + b"\n")
    maker.stdin.flush()
    while not list(folder.parent.glob(".making-*/game.json")):
        assert maker.poll() is None and not folder.exists()
        time.sleep(0.01)
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    assert not folder.exists()

    # two runs want it at once: one makes it, the other waits; what was left over goes
    with ThreadPoolExecutor(2) as both:
        shelves = [Shelf(1, lambda place: recipe)]
        first, second = both.map(lambda _: fill(tmp_path, shelves), range(2))
    assert first == second and first[0][0].story == folder / "game.z8"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_what_the_generator_refuses_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"level-0-seed-1-\w+ can't be made: ValueError: Expected level"):
        make_games(tmp_path, [Recipe("coin_collector", 1, "brief", {"level": 0})])


def test_a_game_that_can_not_be_won_is_none(tmp_path: Path) -> None:
    """This one has a "locker" and a "type 0 locker": asked which, the game takes no answer for the first."""
    settings = {"nb_rooms": 5, "nb_objects": 10, "quest_length": 5, "nb_parallel_quests": 1}
    recipe = Recipe("custom", 0, "brief", settings)
    make_games(tmp_path, [recipe])
    assert [path.name for path in (tmp_path / recipe.folder).iterdir()] == ["manifest.json"]
    assert "does not win" in (tmp_path / recipe.folder / "manifest.json").read_text()


# ---- which games are taken ----


def made(games_dir: Path, recipe: Recipe, content: str | None) -> None:
    """A stand-in for a game of that content; None: its seed makes none."""
    folder = games_dir / recipe.folder
    folder.mkdir(parents=True)
    manifest = {"content": content, "walkthrough": 1, "sha256": {}}
    (folder / "manifest.json").write_text(json.dumps({"error": "none"} if content is None else manifest))


def recipes(seed: int) -> Any:
    return lambda place: Recipe("custom", seed + place, "brief", {})


def test_a_game_that_is_there_already_is_passed_over(tmp_path: Path) -> None:
    for place, content in enumerate(["a", None, "a", "b", "c"]):
        made(tmp_path, recipes(0)(place), content)
    for place, content in enumerate(["b", "d", "e"]):
        made(tmp_path, recipes(100)(place), content)
    held_out, train = fill(tmp_path, [Shelf(2, recipes(0)), Shelf(2, recipes(100))])
    assert [game.content for game in held_out] == ["a", "b"]
    assert [game.content for game in train] == ["d", "e"]
    assert [game.recipe.seed for game in held_out + train] == [0, 3, 101, 102]


def test_there_may_be_too_few_different_games(tmp_path: Path) -> None:
    for place in range(80):  # 20 for each that is wanted, and 20
        made(tmp_path, recipes(0)(place), "ab"[place % 2])
    with pytest.raises(InputError, match=r"^task=textworld: 3 different games .* made only 2; request fewer"):
        fill(tmp_path, [Shelf(3, recipes(0))])


# ---- settings ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"challenge": "coin_collector", "level": 301}, "got level=301.*levels 1 to 300"),
        ({"challenge": "treasure_hunter", "level": 31}, "levels 1 to 30"),
        ({"challenge": "treasure_hunter", "level": 0}, "levels 1 to 30"),
        ({"challenge": "treasure_hunter", "level": 5, "max_level": 4}, "first must not be above the last"),
        ({"challenge": "coin_collector", "level": 151}, "level 151 of coin_collector has 102 rooms"),
        ({"challenge": "coin_collector", "level": 99, "max_level": 234}, "level 151 "),
        ({"challenge": "cooking", "level": 3}, "level was given, but challenge=cooking has no levels"),
        ({"challenge": "cooking", "cooking": {"take": 2}}, "take=2 ingredients"),
        ({"challenge": "cooking", "cooking": {"go": 7}}, "task.cooking.go"),
        ({"challenge": "chess"}, "task.challenge"),
    ],
)
def test_what_can_not_be_made_is_refused_before_anything_is_made(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        task(**options)


def test_levels_that_can_be_made_are_taken() -> None:
    for level in (1, 100, 101, 150, 201, 233, 300 - 67):
        task(challenge="coin_collector", level=level)


def test_recipes_say_what_the_generator_wants() -> None:
    cooking = task(challenge="cooking", cooking={"recipe": 2, "take": 2, "cut": True})
    assert cooking._recipe("validation", None, 4) == Recipe(
        "cooking",
        seed=1_000_004,
        goal="brief",
        settings={
            "recipe": 2,
            "take": 2,
            "go": 6,
            "open": False,
            "cook": False,
            "cut": True,
            "drop": False,
            "recipe_seed": 0,
            "split": "valid",
        },
    )
    simple = task(simple={"rewards": "sparse"}, goal="detailed", seed=2)
    assert simple._recipe("test", None, 0) == Recipe(
        "simple", 8_000_000, "detailed", {"rewards": "sparse", "goal": "detailed", "test": True}
    )
    assert not task(held_out_foods=False)._recipe("test", None, 0).settings["test"]


# ---- one's own games ----


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_own_games_are_dealt_once_each(tmp_path: Path) -> None:
    files(tmp_path, *(f"{number}.z8" for number in range(20)), "notes.txt", "0.json")
    dealt = {split: task(games=str(tmp_path)).prompts(split) for split in SPLITS}
    assert [len(dealt[split]) for split in SPLITS] == [16, 2, 2]
    assert len({prompt.meta["game"] for split in SPLITS for prompt in dealt[split]}) == 20
    assert task(games=str(tmp_path)).prompts("train") == dealt["train"]
    assert task(games=f"{tmp_path}/*.z8").prompts("train") == dealt["train"]
    assert task(games=str(tmp_path), seed=1).prompts("train") != dealt["train"]
    assert dealt["test"][0].id == "textworld/test/0"


def test_own_games_may_lie_in_folders_named_as_the_splits(tmp_path: Path) -> None:
    files(tmp_path, "train/a.z8", "train/more/b.z8", "validation/c.z8", "test/d.z8")
    games = task(games=str(tmp_path))
    assert [[prompt.text for prompt in games.prompts(split)] for split in SPLITS] == [
        ["a", "b"],
        ["c"],
        ["d"],
    ]
    (tmp_path / "test/d.z8").unlink()
    with pytest.raises(InputError, match=r"no \.z8 files for test"):
        games.prompts("test")


def test_two_games_of_ones_own_are_too_few(tmp_path: Path) -> None:
    files(tmp_path, "a.z8", "b.z8")
    with pytest.raises(InputError, match=r"found 2 .* expected at least three"):
        task(games=str(tmp_path)).prompts("train")


def test_without_the_library_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textworld", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install whetstone\[games\]"):
        task(games_dir=str(tmp_path)).prompts("train")


@pytest.mark.parametrize("challenge", ["simple", "coin_collector", "treasure_hunter", "cooking", "custom"])
def test_a_configuration_that_is_read_back_is_the_same_task(challenge: Any) -> None:
    task = TextWorld(challenge=challenge)
    assert TextWorld(**task.model_dump()) == task
