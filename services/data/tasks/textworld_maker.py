"""Process that makes TextWorld games. It reads a recipe from each line and writes a folder for each game.

    {"folder": "/games/coin_collector/17-5f3a…", "recipe": {"challenge": "coin_collector", "seed": 17, …}}

It is a process because a game depends on the order of Python's sets, and an interpreter reads PYTHONHASHSEED
only when it starts. A game's folder is written under another name and then renamed, so it is never partial.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.rollout import Prompt
from rollout_workers.environments.textworld import TextWorld

STORY, FACTS, SOURCE, MANIFEST = "game.z8", "game.json", "game.ni", "manifest.json"
MAX_COMMANDS = 1000  # limit of a walkthrough; the longest have a few hundred
SERIAL_NUMBER = slice(0x12, 0x18)  # bytes of a story's header: the date of compilation


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the generator and its compilers print to standard output
    for line in sys.stdin:
        job = json.loads(line)
        answer = {"folder": job["folder"], "error": None}
        try:
            make(job["recipe"], Path(job["folder"]))
        except Exception as error:  # the generator may raise anything; the caller reports it
            answer["error"] = f"{type(error).__name__}: {error}"[:2000]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def make(recipe: Mapping[str, Any], folder: Path) -> None:
    """Write a game's story, facts and manifest, or a manifest that says why the seed makes no game."""
    from textworld.generator import compile_game
    from textworld.generator.chaining import QuestGenerationError

    folder.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        try:
            game, options = _designed(recipe, making)
        except QuestGenerationError as error:
            known: dict[str, Any] = {"error": str(error)}
        else:
            compile_game(game, options)
            known = _finished(making, game)
            if not _can_be_won(making / STORY):
                known = {"error": "its walkthrough does not win it"}
                (making / STORY).unlink()
                (making / FACTS).unlink()
        (making / MANIFEST).write_text(json.dumps({"recipe": dict(recipe), **known}, indent=1))
        making.chmod(0o755)
        if not folder.exists():
            making.rename(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _designed(recipe: Mapping[str, Any], folder: Path) -> tuple[Any, Any]:
    import textworld
    from textworld.challenges import CHALLENGES

    options = textworld.GameOptions()
    options.seeds = recipe["seed"]
    options.path = str(folder / STORY)
    options.force_recompile = True
    options.grammar.only_last_action = recipe["goal"] != "detailed"
    textworld.g_rng.set_seed(recipe["seed"])  # a game must not depend on earlier ones
    settings = dict(recipe["settings"])
    if recipe["challenge"] == "custom":
        options.nb_rooms = settings["nb_rooms"]
        options.nb_objects = settings["nb_objects"]
        options.nb_parallel_quests = settings["nb_parallel_quests"]
        options.quest_length = settings["quest_length"]
        game = textworld.generator.make_game(options)
    else:
        _, design, _ = CHALLENGES[f"tw-{recipe['challenge']}"]
        game = design(settings, options)
    if recipe["goal"] == "none":
        game.objective = ""
    return game, options


def _finished(folder: Path, game: Any) -> dict[str, Any]:
    """Remove from the files all data that the recipe does not determine, and describe the files."""
    story = bytearray((folder / STORY).read_bytes())
    story[SERIAL_NUMBER] = b"000000"
    (folder / STORY).write_bytes(story)
    source = (folder / SOURCE).read_bytes()
    (folder / SOURCE).unlink()
    return {
        "content": hashlib.sha256(source).hexdigest(),  # the whole world and its texts
        "walkthrough": len(game.metadata.get("walkthrough") or ()),
        "sha256": {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (STORY, FACTS)},
    }


def _can_be_won(story: Path) -> bool:
    """Play the walkthrough. It fails if a custom game has two things that the game can't tell apart."""
    environment = TextWorld().make()
    observation = environment.reset(Prompt("", "", meta={"game": str(story)}), 0)
    won = 0.0
    for _ in range(MAX_COMMANDS):
        if observation.expert is None:
            break
        step = environment.step(observation.expert)
        observation, won = step.observation, step.info["won"]
    environment.close()
    return won == 1.0


if __name__ == "__main__":
    main()
