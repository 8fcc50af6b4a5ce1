"""Checkpoints that are complete or not there: written beside, renamed once the last byte is down.

Each has checksums of its files. One that is not as it was written is renamed, not deleted, and a run goes on
from the newest whole one.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.disk import room_for
from contracts.errors import InputError
from services.checksums import CHECKSUMS, Damage, damage_in, told, write_checksums
from services.json_lines import damaged_name, read_object
from services.run_folder import RunFolder

LOOP_STATE = "loop.json"
UNFINISHED, FORGOTTEN = ".unfinished", ".forgotten"

Note = Callable[[str], None]
_whole: dict[Path, tuple[tuple[str, int, int], ...]] = {}  # what is in a checkpoint that was found whole


def save(
    folder: RunFolder,
    iteration: int,
    save_learner: Callable[[str], None],
    state: Mapping[str, Any],
) -> Path:
    """Write checkpoint `iteration`."""
    final = folder.checkpoint(iteration)
    with appearing_whole(final) as unfinished:
        save_learner(str(unfinished))
        (unfinished / LOOP_STATE).write_text(json.dumps(dict(state), indent=1))
        write_checksums(unfinished)
    return final


def forget(folder: RunFolder, keep: int, spared: int | None = None) -> None:
    """All but the newest `keep`, and `spared`."""
    for iteration, old in list(folder.checkpoints().items())[:-keep]:
        if iteration != spared:
            _remove(old)


@contextlib.contextmanager
def appearing_whole(final: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of `final` in one step when everything in it is written."""
    unfinished = final.with_name(f"{final.name}{UNFINISHED}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        with room_for(final):
            yield unfinished
            for file in unfinished.rglob("*"):
                _to_disk(file)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)  # half of it is of no use, and takes a full disk's room
        raise
    _remove(final)  # one of an earlier start
    os.replace(unfinished, final)
    _to_disk(final.parent)


def latest(folder: RunFolder) -> tuple[int, Path] | None:
    """The newest complete checkpoint."""
    found = folder.checkpoints()
    return (max(found), found[max(found)]) if found else None


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Raises:
    InputError: the file is not there, or damaged.
    """
    return read_object(checkpoint / LOOP_STATE)


def damage(checkpoint: Path) -> list[Damage]:
    """Each file that is not as it was saved. What was found whole is read again only if it has changed."""
    seen = tuple((str(path), *_size_and_time(path)) for path in sorted(checkpoint.rglob("*")))
    if _whole.get(checkpoint) == seen:
        return []
    found = damage_in(checkpoint)
    if not (checkpoint / LOOP_STATE).exists() and all(each.file != LOOP_STATE for each in found):
        found.append(Damage(LOOP_STATE, "is missing"))
    if not found:
        _whole[checkpoint] = seen
    return found


def newest_whole(folder: RunFolder, note: Note) -> tuple[int, Path] | None:
    """The newest checkpoint that is as it was saved; None if there has not been any. See `set_damaged_aside`.

    Raises:
        InputError: all that there were are damaged.
    """
    found = set_damaged_aside(folder, note)
    if found is None and (aside := damaged(folder)):
        raise InputError(
            f"{folder.path} has no whole checkpoint: {', '.join(path.name for path in aside)} are damaged. "
            f"Bring a whole one back as {aside[0].parent}/NUMBER, or choose another run_name= to begin anew"
        )
    return found


def set_damaged_aside(folder: RunFolder, note: Note) -> tuple[int, Path] | None:
    """The newest whole checkpoint, if there is one. Damaged newer ones get another name."""
    for iteration, path in reversed(folder.checkpoints().items()):
        is_new = path not in _whole
        if not (found := damage(path)):
            if is_new and not (path / CHECKSUMS).exists():
                note(f"{path} was saved without checksums: only the form of its files could be checked")
            return iteration, path
        set_aside(path, found, note)
    return None


def set_damaged_best_aside(folder: RunFolder, note: Note) -> None:
    """The same for the best one, which is exported at the end; the mirror may have it whole."""
    with contextlib.suppress(InputError):  # a damaged best.json is written anew
        best = folder.checkpoints().get(read_object(folder.best_file).get("iteration", -1))
        if best is not None and (found := damage(best)):
            set_aside(best, found, note)


def set_aside(checkpoint: Path, found: Sequence[Damage], note: Note) -> None:
    """Rename a damaged checkpoint: it counts no more, and nothing of it is lost."""
    aside = damaged_name(checkpoint)
    os.replace(checkpoint, aside)
    note(f"{checkpoint} is damaged: {told(found)}. It is kept as {aside.name} and no longer used")


def damaged(folder: RunFolder) -> list[Path]:
    """What `set_aside` has renamed."""
    return sorted((folder.path / "checkpoints").glob("*.damaged-*"))


def remove_leftovers(folder: RunFolder, note: Note) -> None:
    """Remove what a start that was killed had half written, or half deleted."""
    for path in leftovers(folder):
        shutil.rmtree(path, ignore_errors=True)
        note(f"removed {path}, which an earlier start had not finished")


def leftovers(folder: RunFolder) -> list[Path]:
    """Folders that were being written or deleted."""
    places = (folder.path, folder.path / "checkpoints")
    found = (place.glob(f"*{end}") for place in places for end in (UNFINISHED, FORGOTTEN))
    return sorted(path for paths in found for path in paths)


def _remove(folder: Path) -> None:
    """Under another name first: half of it must not look complete."""
    gone = folder.with_name(f"{folder.name}{FORGOTTEN}")
    shutil.rmtree(gone, ignore_errors=True)  # a crash left it
    with contextlib.suppress(FileNotFoundError):
        os.replace(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _size_and_time(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _to_disk(path: Path) -> None:
    """A rename is only as good as the bytes it makes visible."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
