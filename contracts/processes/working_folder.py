"""The folder in which a command was started: it holds the user's modules and is searched last.

A folder in it may be called `datasets`, `learner` or `torch`. Python's `-m` and Ray put the working folder
first on the path. There it would replace our package or a library in every process of a run.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from contracts.processes.python_files import spec_of

FOLDER, SAFE_PATH = "WHETSTONE_FOLDER", "PYTHONSAFEPATH"
MORE_FOLDERS = "WHETSTONE_PATH"  # searched after the working folder; written like PYTHONPATH


class SearchedLast(MetaPathFinder):
    """An import finder for one folder, and for files by their names; it finds no installed modules.

    A folder without `__init__.py` counts only if it holds Python files, so that a folder of data or results
    does not make a missing library look installed.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None:  # a module of a package, which has its own path
            return None
        if (file := spec_of(fullname)) is not None:
            return file
        spec = PathFinder.find_spec(fullname, [self.folder])
        if spec is not None and spec.loader is None and not _holds_python(Path(self.folder, fullname)):
            return None
        return spec


def working_folder() -> str | None:
    """Return the folder of the command that this process belongs to; None if it was deleted."""
    try:
        return os.environ.get(FOLDER) or os.getcwd()
    except FileNotFoundError:
        return None


def variable() -> dict[str, str]:
    """Return the environment variables that lead other processes to the user's modules."""
    folder, more = working_folder(), os.environ.get(MORE_FOLDERS)
    variables = {} if folder is None else {FOLDER: os.path.abspath(folder)}
    return variables | ({MORE_FOLDERS: more} if more else {})


def search_last() -> None:
    """Make imports search the working folder after all installed packages. Ray workers call this first."""
    folders = [working_folder(), *os.environ.get(MORE_FOLDERS, "").split(os.pathsep)]
    for folder in reversed([folder for folder in folders if folder]):
        others = [finder for finder in sys.meta_path if isinstance(finder, SearchedLast)]
        if all(finder.folder != folder for finder in others):
            place = sys.meta_path.index(others[0]) if others else len(sys.meta_path)
            sys.meta_path.insert(place, SearchedLast(folder))


@contextlib.contextmanager
def off_the_path_of_children() -> Iterator[None]:
    """Keep a library's child processes, started with `-m` or `-c`, from finding the working folder first."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


def hidden(module_name: str) -> str | None:
    """Return a sentence that names the installed module that hides a local one, or None.

    Example: `services is hidden by the installed 'services' (/opt/…), which is found first; rename yours`
    """
    folder, name = working_folder(), module_name.partition(".")[0]
    if folder is None:
        return None
    local = next((path for path in (Path(folder, name), Path(folder, f"{name}.py")) if path.exists()), None)
    loaded = sys.modules.get(name)
    if local is None or loaded is None:
        return None
    places = [*getattr(loaded, "__path__", ()), getattr(loaded, "__file__", None)]
    installed = next((Path(place) for place in places if place), None)
    if installed is not None and installed.is_relative_to(local):
        return None
    where = f" ({installed})" if installed else ""
    return f"{local} is hidden by the installed {name!r}{where}, which is found first; rename yours"


def clashes(folder: Path) -> list[str]:
    """Return the sorted names of modules and packages in the folder that are also installed."""
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    names = packages | {path.stem for path in folder.glob("*.py")}
    return sorted(name for name in names if name.isidentifier() and _is_elsewhere(name, folder.absolute()))


def _is_elsewhere(name: str, folder: Path) -> bool:
    with contextlib.suppress(ValueError):  # `__main__` has no specification
        spec = find_spec(name)
        return spec is not None and not (spec.origin and Path(spec.origin).is_relative_to(folder))
    return False


def _holds_python(folder: Path) -> bool:
    return any(True for pattern in ("*.py", "*/*.py") for _ in folder.glob(pattern))
