"""Recognize a full disk in errors of the system, of libraries and of Ray; refuse to start on a full disk."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from contracts.errors import DiskFull, InputError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no space, a quota, a limit on the size of a file
# Other libraries report a full disk by these words, not by OSError. The last is Rust's error for a file that
# is too large.
WORDS = (
    *("no space left on device", "disk quota exceeded", "database or disk is full"),
    f"(os error {errno.EFBIG})",
)
OF_RAY = {"OutOfDiskError", "ObjectStoreFullError"}
NEARLY_FULL = 2**20  # bytes left; a file system may reserve some of them


def is_full(error: BaseException) -> bool:
    """Return whether the error means that a disk, a quota or a limit left no room."""
    if isinstance(error, OSError):
        return error.errno in FULL
    names, message = {kind.__name__ for kind in type(error).__mro__}, str(error).lower()
    return isinstance(error, DiskFull) or bool(names & OF_RAY) or any(word in message for word in WORDS)


@contextlib.contextmanager
def room_for(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise DiskFull if a write to `path`, or to files in it, finds no room.

    Raises:
        DiskFull: replaces the original error.
    """
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        raise DiskFull(f"{path} could not be written: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return the system's words for the full place.

    >>> _reason(RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"))
    'no space left on device'
    """
    if isinstance(error, OSError):
        return str(error.strerror).lower()
    if isinstance(error, DiskFull):  # names a file in this folder
        return str(error).rpartition(": ")[2]
    message = str(error).lower()
    return next((word for word in WORDS if word in message), str(error))


def ray_folder() -> Path:
    """Return the folder of Ray's logs and of objects that Ray moves out of memory."""
    return Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir()))


def check_room(folder: Path, what: str, remedy: str, least: int = NEARLY_FULL) -> None:
    """Refuse a folder whose disk is full.

    Raises:
        InputError: fewer than `least` bytes are left; the message names the planned data and a remedy.
    """
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if full_places([there], least):
        left = shutil.disk_usage(there).free
        raise InputError(
            f"{there}: {left:,} bytes are left on this disk, where {what} would be written; expected "
            f"at least {least:,}. Make room, or {remedy}"
        )


def full_places(folders: Iterable[Path], least: int = NEARLY_FULL) -> list[Path]:
    """Return the folders whose disks have less than `least` bytes left."""
    there = {folder: shutil.disk_usage(folder) for folder in folders if folder.exists()}
    return [folder for folder, disk in there.items() if disk.total and disk.free < least]
