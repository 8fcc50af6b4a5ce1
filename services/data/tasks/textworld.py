"""Win text games: a pool of TextWorld games, made offline by seed and level, or your own."""

import glob
import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import Settings
from services.data.tasks.base import SPLITS, Split
from services.data.tasks.textworld_games import Game, Recipe, Shelf, fill

Challenge = Literal["simple", "coin_collector", "treasure_hunter", "cooking", "custom"]
LEVELS = {"coin_collector": 300, "treasure_hunter": 30}
MAX_ROOMS = 100  # that TextWorld 1.7 can compile in a game
SEEDS_OF_A_SPLIT = 1_000_000


class Simple(Settings):
    """House of six rooms: find a key and a piece of food, and put it on the stove."""

    rewards: Literal["dense", "balanced", "sparse"] = "dense"  # points for many steps, few, or the end


class Cooking(Settings):
    """Cooking game: find the kitchen, read the recipe, gather the ingredients, prepare and eat the meal."""

    recipe: int = Field(default=1, ge=1)  # ingredients
    take: int = Field(default=1, ge=0)  # ingredients that have to be found
    go: Literal[1, 6, 9, 12] = 6  # rooms
    open: bool = False  # doors and containers are closed
    cook: bool = False  # ingredients have to be cooked in the right way
    cut: bool = False
    drop: bool = False  # the player can carry a limited number of things

    @model_validator(mode="after")
    def _check(self) -> "Cooking":
        if self.take > self.recipe:
            raise ValueError(f"take={self.take} ingredients of a recipe with recipe={self.recipe}")
        return self


class Custom(Settings):
    """Random house with a random quest."""

    nb_rooms: int = Field(default=5, ge=1, le=MAX_ROOMS)
    nb_objects: int = Field(default=10, ge=1)
    quest_length: int = Field(default=5, ge=1)  # commands
    nb_parallel_quests: int = Field(default=1, ge=1)


class TextWorld(Settings):
    """Task over text games. No game is in two splits, and `num_train` does not change validation and test."""

    needs_environment: ClassVar[str] = "textworld"
    raw_text: ClassVar[bool] = True
    default_reward: ClassVar[str | None] = None  # the game rewards: environment.rewards
    default_metrics: ClassVar[tuple[str, ...]] = ()

    challenge: Challenge = "simple"
    level: int = 1  # difficulty of coin_collector (1 to 300) and treasure_hunter (1 to 30)
    max_level: int | None = None  # equally many games of level, level + 1 … max_level
    # Content of the objective: every step, only the last step, nothing
    goal: Literal["detailed", "brief", "none"] = "brief"
    held_out_foods: bool = True  # hold out foods: simple's for test, cooking's also for validation
    simple: Simple = Simple()
    cooking: Cooking = Cooking()
    custom: Custom = Custom()
    num_train: int = Field(default=100, ge=1)
    num_validation: int = Field(default=20, ge=1)
    num_test: int = Field(default=50, ge=1)
    seed: int = Field(default=0, ge=0, le=1000)  # chooses the games; the run's seed does not change them
    games_dir: str = "~/.cache/whetstone/textworld"  # readable by every worker
    games: str | None = None  # a folder or glob of your own .z8 files

    @model_validator(mode="after")
    def _check_levels(self) -> "TextWorld":
        highest = LEVELS.get(self.challenge)
        defaults = {"level": 1, "max_level": None}  # a configuration that is read back has these, too
        changed = {name for name, default in defaults.items() if getattr(self, name) != default}
        if highest is None:
            if changed and self.games is None:
                raise ValueError(
                    f"{' and '.join(sorted(changed))} {'was' if len(changed) == 1 else 'were'} given, but "
                    f"challenge={self.challenge} has no levels; coin_collector and treasure_hunter have"
                )
            return self
        last = self.level if self.max_level is None else self.max_level
        if not 1 <= self.level <= last <= highest:
            raise ValueError(
                f"got level={self.level} to max_level={last}; {self.challenge} has levels 1 to {highest}, "
                "and the first must not be above the last"
            )
        if self.challenge == "coin_collector":
            for level in range(self.level, last + 1):
                if (rooms := (1 + (level - 1) // 100) * (1 + (level - 1) % 100)) > MAX_ROOMS:
                    raise ValueError(
                        f"level {level} of coin_collector has {rooms} rooms, and TextWorld 1.7 makes at most "
                        f"{MAX_ROOMS}: levels 1 to 100, 101 to 150 and 201 to 233 are left"
                    )
        return self

    def prompts(self, split: Split) -> list[Prompt]:
        """Return a prompt for each game. Make missing games, which takes seconds each."""
        if self.games is not None:
            return own_games(self.games, split, self.seed)
        return [
            Prompt(f"textworld/{split}/{row}", _name_of(game), meta=_meta_of(game))
            for row, game in enumerate(self._games(split))
        ]

    def _games(self, split: Split) -> list[Game]:
        """Return the split's games, alternating between levels."""
        levels = self._levels()
        order: tuple[Split, ...] = ("test", "validation", "train")  # the first split chooses first
        counts = {"train": self.num_train, "validation": self.num_validation, "test": self.num_test}
        shelves = [
            Shelf(len(range(place, counts[name], len(levels))), partial(self._recipe, name, level))
            for name in order
            for place, level in enumerate(levels)
        ]
        filled = fill(Path(self.games_dir).expanduser().absolute(), shelves)
        start = order.index(split) * len(levels)
        by_level = filled[start : start + len(levels)]
        return [by_level[row % len(levels)][row // len(levels)] for row in range(counts[split])]

    def _levels(self) -> list[int | None]:
        if self.challenge not in LEVELS:
            return [None]
        return list(range(self.level, (self.max_level or self.level) + 1))

    def _recipe(self, split: Split, level: int | None, place: int) -> Recipe:
        seed = (3 * self.seed + SPLITS.index(split)) * SEEDS_OF_A_SPLIT + place
        return Recipe(self.challenge, seed, self.goal, self._settings_of(split, level))

    def _settings_of(self, split: Split, level: int | None) -> dict[str, Any]:
        """Return the settings under the names of TextWorld's generator."""
        if self.challenge == "simple":
            test = self.held_out_foods and split == "test"
            return {"rewards": self.simple.rewards, "goal": self.goal, "test": test}
        if self.challenge == "cooking":
            foods = {"train": "train", "validation": "valid", "test": "test"}[split]
            return {
                **self.cooking.model_dump(),
                "recipe_seed": 0,
                "split": foods if self.held_out_foods else None,
            }
        if self.challenge == "custom":
            return self.custom.model_dump()
        return {"level": level}


def _name_of(game: Game) -> str:
    level = game.recipe.settings.get("level")
    where = "" if level is None else f", level {level}"
    return f"{game.recipe.challenge}{where}, seed {game.recipe.seed}"


def _meta_of(game: Game) -> dict[str, Any]:
    meta = {"game": str(game.story), "walkthrough": game.walkthrough}
    if "level" in game.recipe.settings:
        meta["level"] = game.recipe.settings["level"]
    return meta


def own_games(where: str, split: Split, seed: int) -> list[Prompt]:
    """Return the user's games, from the folders train, validation and test, or a share of all games.

    Training gets eight tenths, validation and test a tenth each. The seed and a game's name decide its split.

    Raises:
        InputError: there are no games, or fewer than three to divide.
    """
    path = Path(where).expanduser().absolute()
    if path.is_dir() and all((path / name).is_dir() for name in SPLITS):
        chosen = sorted((path / split).glob("**/*.z8"))
    else:
        files = [Path(match) for match in glob.glob(str(path), recursive=True)]
        paths = sorted({f for file in files for f in ([file] if file.is_file() else file.glob("**/*.z8"))})
        chosen = _dealt([file for file in paths if file.suffix == ".z8"], split, seed, where)
    if not chosen:
        raise InputError(f"task.games={where}: there are no .z8 files for {split}")
    return [
        Prompt(f"textworld/{split}/{row}", file.stem, meta={"game": str(file), **_known_of(file)})
        for row, file in enumerate(chosen)
    ]


def _dealt(games: Sequence[Path], split: Split, seed: int, where: str) -> list[Path]:
    if len(games) < 3:
        raise InputError(
            f"task.games={where}: found {len(games)} .z8 files; expected at least three, one for each of "
            "train, validation and test, or folders with these names"
        )
    order = sorted(games, key=lambda game: hashlib.sha256(f"{seed}/{game.name}/{game}".encode()).hexdigest())
    tenth = max(1, len(order) // 10)
    start, stop = {
        "test": (0, tenth),
        "validation": (tenth, 2 * tenth),
        "train": (2 * tenth, len(order)),
    }[split]
    return order[start:stop]


def _known_of(game: Path) -> dict[str, int]:
    try:
        metadata = json.loads(game.with_suffix(".json").read_text())["metadata"]
        return {"walkthrough": len(metadata["walkthrough"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # the environment reports what is wrong
