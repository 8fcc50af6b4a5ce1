"""Checkpoints that are complete or not there: written beside, renamed once the last byte is down."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from services.run_folder import RunFolder

LOOP_STATE = "loop.json"


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
    return final


def forget(folder: RunFolder, keep: int, spared: int | None = None) -> None:
    """All but the newest `keep`, and `spared`."""
    for iteration, old in list(folder.checkpoints().items())[:-keep]:
        if iteration != spared:
            _remove(old)


@contextlib.contextmanager
def appearing_whole(final: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of `final` in one step when everything in it is written."""
    unfinished = final.with_name(f"{final.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    yield unfinished
    for file in unfinished.rglob("*"):
        _to_disk(file)
    _remove(final)  # one of an earlier start
    os.replace(unfinished, final)
    _to_disk(final.parent)


def latest(folder: RunFolder) -> tuple[int, Path] | None:
    """The newest complete checkpoint."""
    found = folder.checkpoints()
    return (max(found), found[max(found)]) if found else None


def read_state(checkpoint: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((checkpoint / LOOP_STATE).read_text())
    return state


def _remove(folder: Path) -> None:
    """Under another name first: half of it must not look complete."""
    gone = folder.with_name(f"{folder.name}.forgotten")
    shutil.rmtree(gone, ignore_errors=True)  # a crash left it
    with contextlib.suppress(FileNotFoundError):
        os.replace(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _to_disk(path: Path) -> None:
    """A rename is only as good as the bytes it makes visible."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
