"""Check a TextWorld game's files before the interpreter reads them, because damage would end its process."""

import json
from pathlib import Path

from contracts.errors import InputError
from contracts.rollout import Prompt


def game_of(prompt: Prompt) -> Path:
    """Return the path of the prompt's game.

    Raises:
        InputError: the prompt names no game, the file is missing or no game, or its JSON is missing.
    """
    where = f"environment=textworld, prompt {prompt.id}"
    if "game" not in prompt.meta:
        raise InputError(
            f"{where}: its meta names no game; expected meta={{'game': path of a .z8 file}}, as "
            "task=textworld makes it"
        )
    path = Path(str(prompt.meta["game"])).expanduser()
    if path.suffix != ".z8":
        raise InputError(f"{where}: {path} is not a game; expected a .z8 file made by TextWorld")
    for file in (path, path.with_suffix(".json")):
        if not file.is_file():
            raise InputError(
                f"{where}: there is no file {file} on this machine. A game is two files, NAME.z8 and "
                "NAME.json: without the second, scores and possible actions are missing. Put them where "
                "every worker sees them, or make the game again"
            )
    if not _is_whole(path.read_bytes()):
        raise InputError(f"{where}: {path} is damaged, or no Z-machine game of version 8; make it again")
    try:
        known = json.loads(path.with_suffix(".json").read_text())
    except ValueError as error:
        raise InputError(f"{where}: {path.with_suffix('.json')} is not JSON: {error}") from None
    if not isinstance(known, dict) or not {"KB", "quests", "world"} <= known.keys():
        raise InputError(f"{where}: {path.with_suffix('.json')} is not a TextWorld game's description")
    return path


def _is_whole(story: bytes) -> bool:
    """Return whether length and checksum match the header (Z-Machine Standards 1.1, 11.1.6)."""
    if len(story) < 64 or story[0] != 8:
        return False
    length = int.from_bytes(story[0x1A:0x1C]) * 8
    return 64 < length <= len(story) and sum(story[0x40:length]) % 65536 == int.from_bytes(story[0x1C:0x1E])
