"""Checkpoints are complete or absent: each is written under another name, and renamed when it is on disk.

`learner/checkpoint.py` writes the learner's files. Each checkpoint has checksums. A damaged checkpoint is
renamed, not deleted. Runs continue from the newest undamaged checkpoint.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from contracts.processes.disk import room_for
from services.runs.checksums import CHECKSUMS, Damage, damage_in, told, write_checksums
from services.runs.folder import RunFolder
from services.runs.json_lines import damaged_name, read_object

LOOP_STATE = "loop.json"
UNFINISHED, FORGOTTEN = ".unfinished", ".forgotten"

Note = Callable[[str], None]
_whole: dict[Path, tuple[tuple[str, int, int], ...]] = {}  # files, sizes and times of each whole one


def save(
    folder: RunFolder,
    iteration: int,
    save_learner: Callable[[str], None],
    state: Mapping[str, Any],
) -> Path:
    """Write checkpoint `iteration` and return its folder."""
    final = folder.checkpoint(iteration)
    with appearing_whole(final) as unfinished:
        save_learner(str(unfinished))
        (unfinished / LOOP_STATE).write_text(json.dumps(dict(state), indent=1))
        write_checksums(unfinished)
    return final


def forget(folder: RunFolder, keep: int, spared: int | None = None) -> None:
    """Delete all checkpoints except the newest `keep` and `spared`."""
    for iteration, old in list(folder.checkpoints().items())[:-keep]:
        if iteration != spared:
            _remove(old)


@contextlib.contextmanager
def appearing_whole(final: Path) -> Iterator[Path]:
    """Yield a folder to fill, which at the end replaces `final` in one step."""
    unfinished = final.with_name(f"{final.name}{UNFINISHED}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        with room_for(final):
            yield unfinished
            for file in unfinished.rglob("*"):
                _to_disk(file)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)  # half a folder is useless, and the disk may be full
        raise
    _remove(final)  # left by an earlier start
    os.replace(unfinished, final)
    _to_disk(final.parent)


def latest(folder: RunFolder) -> tuple[int, Path] | None:
    """Return the newest complete checkpoint: its iteration and folder."""
    complete = folder.checkpoints()
    return (max(complete), complete[max(complete)]) if complete else None


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Read the loop's state from a checkpoint.

    Raises:
        InputError: the file is missing or damaged.
    """
    return read_object(checkpoint / LOOP_STATE)


def damage(checkpoint: Path) -> list[Damage]:
    """Return each damaged file. Read an undamaged checkpoint again only if its files changed."""
    seen = tuple((str(path), *_size_and_time(path)) for path in sorted(checkpoint.rglob("*")))
    if _whole.get(checkpoint) == seen:
        return []
    damages = damage_in(checkpoint)
    if not (checkpoint / LOOP_STATE).exists() and all(damage.file != LOOP_STATE for damage in damages):
        damages.append(Damage(LOOP_STATE, "is missing"))
    if not damages:
        _whole[checkpoint] = seen
    return damages


def newest_whole(folder: RunFolder, note: Note) -> tuple[int, Path] | None:
    """Return the newest undamaged checkpoint, None if there never was one. Set damaged newer ones aside.

    Raises:
        InputError: all checkpoints are damaged.
    """
    newest = set_damaged_aside(folder, note)
    if newest is None and (aside := damaged(folder)):
        raise InputError(
            f"{folder.path} has no whole checkpoint: {', '.join(path.name for path in aside)} are damaged. "
            f"Restore a whole one as {aside[0].parent}/NUMBER, or choose another run_name= to start again"
        )
    return newest


def set_damaged_aside(folder: RunFolder, note: Note) -> tuple[int, Path] | None:
    """Rename damaged checkpoints until one is undamaged; return that one, if any."""
    for iteration, path in reversed(folder.checkpoints().items()):
        is_new = path not in _whole
        if not (damages := damage(path)):
            if is_new and not (path / CHECKSUMS).exists():
                note(f"{path} was saved without checksums: only the form of its files could be checked")
            return iteration, path
        set_aside(path, damages, note)
    return None


def set_damaged_best_aside(folder: RunFolder, note: Note) -> None:
    """Rename a damaged best checkpoint, because the run exports it and the mirror may have it whole."""
    with contextlib.suppress(InputError):  # a damaged best.json is written again later
        best = folder.checkpoints().get(read_object(folder.best_file).get("iteration", -1))
        if best is not None and (damages := damage(best)):
            set_aside(best, damages, note)


def set_aside(checkpoint: Path, damages: Sequence[Damage], note: Note) -> None:
    """Rename a damaged checkpoint, so that nothing uses it and nothing is lost."""
    aside = damaged_name(checkpoint)
    os.replace(checkpoint, aside)
    note(f"{checkpoint} is damaged: {told(damages)}. It is now called {aside.name}, and no longer used")


def damaged(folder: RunFolder) -> list[Path]:
    """Return the checkpoints that `set_aside` renamed."""
    return sorted((folder.path / "checkpoints").glob("*.damaged-*"))


def remove_leftovers(folder: RunFolder, note: Note) -> None:
    """Remove folders that a killed run left half written or half deleted."""
    for path in leftovers(folder):
        shutil.rmtree(path, ignore_errors=True)
        note(f"removed {path}, which an earlier start had not finished")


def leftovers(folder: RunFolder) -> list[Path]:
    """Return folders that are half written or half deleted."""
    places = (folder.path, folder.path / "checkpoints")
    leftover_paths = (place.glob(f"*{end}") for place in places for end in (UNFINISHED, FORGOTTEN))
    return sorted(path for paths in leftover_paths for path in paths)


def _remove(folder: Path) -> None:
    """Rename a folder and then delete it, because half of it must not look complete."""
    gone = folder.with_name(f"{folder.name}{FORGOTTEN}")
    shutil.rmtree(gone, ignore_errors=True)  # left by a crash
    with contextlib.suppress(FileNotFoundError):
        os.replace(folder, gone)
    if gone.is_symlink():  # the user keeps the checkpoint elsewhere; only the link belongs to the run
        gone.unlink()
    shutil.rmtree(gone, ignore_errors=True)


def _size_and_time(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _to_disk(path: Path) -> None:
    """Flush a file or folder to disk, so that a later rename shows only complete bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
