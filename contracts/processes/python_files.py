"""Modules of a user's Python files, as `FILE.py:NAME` names them, under names that every process can import.

A class of such a file travels to other processes by its module's name, so the name holds the file's path.
"""

import os
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType

SUFFIX = ".py"
# Python splits a module's name at dots, and tools read slashes as folders, so look-alikes replace both.
LOOK_ALIKES = {"/": "\N{DIVISION SLASH}", ".": "\N{ONE DOT LEADER}"}
AS_NAME = str.maketrans(LOOK_ALIKES)
AS_PATH = str.maketrans({name: mark for mark, name in LOOK_ALIKES.items()})


def is_file(place: str) -> bool:
    """Return whether the part before the colon is a file, not a module's name.

    >>> is_file("rewards/short.py"), is_file("rewards.short")
    (True, False)
    """
    return place.endswith(SUFFIX)


def straight(path: Path) -> Path:
    """Return the path of a file without `..`, unless that leads elsewhere, as after a linked folder."""
    normalized = Path(os.path.normpath(path))
    return normalized if normalized.is_file() and normalized.samefile(path) else path


def module_name(path: Path) -> str:
    """Return the name of a file's module; `path` is absolute, and straight.

    >>> module_name(Path("/home/ada/short.py"))
    '∕home∕ada∕short․py'
    """
    return str(path).translate(AS_NAME)


def spec_of(name: str) -> ModuleSpec | None:
    """Return the loader's data for this module's file; None if no file has the name."""
    path = Path(name.translate(AS_PATH))
    if not name.startswith(LOOK_ALIKES["/"]) or not is_file(path.name) or not path.is_file():
        return None
    return spec_from_file_location(name, path, loader=_Source(name, str(path)))


class _Source(SourceFileLoader):
    """Loader of a file's current text: Python's cache can't distinguish two edits within a second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)
