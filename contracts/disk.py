"""A full disk, however it is told: by the system, by a library in words, by Ray."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from contracts.errors import DiskFull

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no space, a quota, a limit on the size of a file
# What libraries say where they raise no OSError: safetensors (Rust), SQLite.
WORDS = (*map(os.strerror, FULL), "database or disk is full")
OF_RAY = ("OutOfDiskError", "ObjectStoreFullError")
NEARLY_FULL = 2**20  # bytes left, of which a file system may keep some for itself


def is_full(error: BaseException) -> bool:
    """Whether there was no room for what was to be written."""
    if isinstance(error, OSError):
        return error.errno in FULL
    names = [kind.__name__ for kind in type(error).__mro__]
    return (
        isinstance(error, DiskFull)
        or bool(set(OF_RAY) & set(names))
        or any(word in str(error) for word in WORDS)
    )


@contextlib.contextmanager
def room_for(path: str | os.PathLike[str]) -> Iterator[None]:
    """Around what writes to `path`.

    Raises:
        DiskFull: in the place of what says that there is no room.
    """
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:
        if not is_full(error):
            raise
        raise DiskFull(f"{path} could not be written: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """
    >>> _reason(RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"))
    'no space left on device'
    """
    text = next((word for word in WORDS if word in str(error)), str(error))
    return text[:1].lower() + text[1:]


def full_places(folders: Iterable[Path]) -> list[Path]:
    """Those of the folders whose disks have no room left."""
    return [folder for folder in folders if folder.exists() and shutil.disk_usage(folder).free < NEARLY_FULL]
