"""Pool of different TextWorld games on the disk. Each is made once from a recipe, and then reused.

games_dir/coin_collector/level-5-seed-17-5f3a0c1d/   game.z8   game.json   manifest.json
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from contracts.errors import InputError, RunError
from services.data.tasks.textworld_maker import MANIFEST, STORY

QUIET_S = 3.0  # time between reports of progress


@dataclass(frozen=True, slots=True)
class Recipe:
    """Recipe that determines a game to the last byte.

    Example: `Recipe("coin_collector", seed=17, goal="brief", settings={"level": 5})`
    """

    challenge: str
    seed: int
    goal: str
    settings: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {
            "challenge": self.challenge,
            "seed": self.seed,
            "goal": self.goal,
            "settings": dict(self.settings),
        }

    @property
    def folder(self) -> str:
        digest = hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()[:8]
        level = f"level-{self.settings['level']}-" if "level" in self.settings else ""
        return f"{self.challenge}/{level}seed-{self.seed}-{digest}"


@dataclass(frozen=True, slots=True)
class Game:
    """Game in the pool. `content` is equal for games that a player can't tell apart."""

    recipe: Recipe
    story: Path
    walkthrough: int  # commands
    content: str
    sha256: Mapping[str, str]  # digests of its files, by name


@dataclass(frozen=True, slots=True)
class Shelf:
    """Number of requested games from a series of recipes."""

    count: int
    recipe: Callable[[int], Recipe]


def fill(games_dir: Path, shelves: Sequence[Shelf]) -> list[list[Game]]:
    """Return each shelf's first `count` games, all different across shelves; make missing ones.

    If two games are equal, the later recipe or shelf skips it. So a shelf's games depend neither on later
    shelves nor on their sizes.

    Raises:
        InputError: there are fewer different games than requested, or a game's file was changed.
    """
    known: dict[str, Game | None] = {}  # known games by folder
    while True:
        filled, wanted = _choose(games_dir, shelves, known)
        if not wanted:
            break
        make_games(games_dir, wanted)
    for game in (game for shelf in filled for game in shelf):
        _check_files(game)
    return filled


def _choose(
    games_dir: Path, shelves: Sequence[Shelf], known: dict[str, Game | None]
) -> tuple[list[list[Game]], list[Recipe]]:
    """Return the games of the shelves, and the recipes of missing games."""
    taken: set[str] = set()
    filled, wanted = [], []
    for shelf in shelves:
        games: list[Game] = []
        num_missing = 0
        for place in range(20 * shelf.count + 20):
            if len(games) + num_missing == shelf.count:
                break
            recipe = shelf.recipe(place)
            if recipe.folder not in known:
                if not (games_dir / recipe.folder).exists():
                    wanted.append(recipe)
                    num_missing += 1
                    continue
                known[recipe.folder] = _read(games_dir, recipe)
            game = known[recipe.folder]
            if game is not None and game.content not in taken:
                taken.add(game.content)
                games.append(game)
        if len(games) + num_missing < shelf.count:
            raise InputError(
                f"task=textworld: {shelf.count} different games like {shelf.recipe(0).as_json()} were "
                f"requested, but {20 * shelf.count + 20} seeds made only {len(games)}; request fewer or "
                "larger ones"
            )
        filled.append(games)
    return filled, wanted


def _read(games_dir: Path, recipe: Recipe) -> Game | None:
    """Read a game from the pool; None if its manifest says that the seed makes no game."""
    folder = games_dir / recipe.folder
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if "error" in manifest:
            return None
        return Game(recipe, folder / STORY, manifest["walkthrough"], manifest["content"], manifest["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"task=textworld: the game in {folder} can't be read ({type(error).__name__}: {error}); delete "
            "that folder, and the game is made again"
        ) from None


def _check_files(game: Game) -> None:
    for name, expected in game.sha256.items():
        path = game.story.with_name(name)
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise InputError(
                f"task=textworld: {path} was {'changed' if path.is_file() else 'deleted'} since it was made; "
                f"delete the folder {path.parent}, and the game is made again"
            )


def make_games(games_dir: Path, recipes: Sequence[Recipe]) -> None:
    """Make the missing games on all cores, one run at a time.

    Raises:
        InputError: TextWorld is not installed, or rejects a recipe.
        RunError: a process that makes games died.
    """
    if importlib.util.find_spec("textworld") is None:
        raise InputError("task=textworld needs TextWorld; install it with pip install whetstone[games]")
    games_dir.mkdir(parents=True, exist_ok=True)
    with _alone(games_dir):
        for left_over in games_dir.glob("*/.making-*"):  # left by a killed run
            shutil.rmtree(left_over, ignore_errors=True)
        missing = [recipe for recipe in recipes if not (games_dir / recipe.folder).exists()]
        began = reported = time.monotonic()
        for num_made, answer in enumerate(_answers(games_dir, missing), 1):
            if answer["error"]:
                raise InputError(f"task=textworld: {answer['folder']} can't be made: {answer['error']}")
            if num_made < len(missing) and time.monotonic() - reported > QUIET_S:
                reported = time.monotonic()
                left = (reported - began) / num_made * (len(missing) - num_made)
                print(
                    f"making TextWorld games in {games_dir}: {num_made} of {len(missing)}, {left:.0f} s left",
                    file=sys.stderr,
                )


@contextmanager
def _alone(games_dir: Path) -> Iterator[None]:
    lock = FileLock(games_dir / ".lock")
    try:
        lock.acquire(timeout=QUIET_S)
    except Timeout:
        print(f"waiting for another run that makes games in {games_dir}", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _answers(games_dir: Path, recipes: Sequence[Recipe]) -> Iterator[dict[str, Any]]:
    """Start a process for each core, and yield their answers. End the processes with the iterator."""
    jobs = [json.dumps({"folder": str(games_dir / r.folder), "recipe": r.as_json()}) + "\n" for r in recipes]
    num_processes = min(len(jobs), len(os.sched_getaffinity(0)))
    reading, writing = os.pipe()  # several processes write, but short lines arrive whole
    processes = []
    with tempfile.TemporaryFile("w+") as complaints, os.fdopen(reading) as answers:
        try:
            for number in range(num_processes):
                processes.append(_start(jobs[number::num_processes], writing, complaints))
            os.close(writing)  # so that reading ends once all processes have ended
            for _ in jobs:
                line = answers.readline()
                if not line:
                    complaints.seek(0)
                    raise RunError(f"a process that makes games died: {complaints.read()[-2000:].strip()}")
                yield json.loads(line)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _start(jobs: Sequence[str], answers: int, complaints: Any) -> "subprocess.Popen[bytes]":
    with tempfile.TemporaryFile("w+") as share:
        share.writelines(jobs)
        share.seek(0)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "services.data.tasks.textworld_maker"],
            stdin=share,
            stdout=answers,
            stderr=complaints,
            env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
        )
