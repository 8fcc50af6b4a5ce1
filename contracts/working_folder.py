"""The folder in which a command was started: modules of the user's own lie there, and are looked for last.

A folder of that place may be called `datasets`, `learner` or `torch`. First on the path, where Python's `-m`
and Ray put it, it would take the place of ours or of a library, in every process of a run.
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

FOLDER, SAFE_PATH = "WHETSTONE_FOLDER", "PYTHONSAFEPATH"


class SearchedLast(MetaPathFinder):
    """Finds modules in one folder, once nothing installed has the name.

    A folder without `__init__.py` counts if Python files lie in it: folders of data or results do not make a
    missing library look installed.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None:  # a module of a package, which has a path of its own
            return None
        found = PathFinder.find_spec(fullname, [self.folder])
        if found is not None and found.loader is None and not _holds_python(Path(self.folder, fullname)):
            return None
        return found


def working_folder() -> str | None:
    """The folder of the command that this process belongs to; None if it was deleted."""
    try:
        return os.environ.get(FOLDER) or os.getcwd()
    except FileNotFoundError:
        return None


def variable() -> dict[str, str]:
    """What tells a process that is started elsewhere where the user's modules are."""
    folder = working_folder()
    return {} if folder is None else {FOLDER: os.path.abspath(folder)}


def search_last() -> None:
    """Have the working folder searched after everything that is installed. Workers of Ray call it first."""
    folder = working_folder()
    others = [finder for finder in sys.meta_path if isinstance(finder, SearchedLast)]
    if folder is not None and all(finder.folder != folder for finder in others):
        place = sys.meta_path.index(others[0]) if others else len(sys.meta_path)
        sys.meta_path.insert(place, SearchedLast(folder))


@contextlib.contextmanager
def off_the_path_of_children() -> Iterator[None]:
    """Keep the working folder off the path of processes that a library starts with `-m` or `-c`."""
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
    """A sentence, if the working folder has this module or package, and an installed one comes before it.

    Example: `./services hides behind the installed 'services' (/opt/whetstone/services): rename yours`
    """
    folder, name = working_folder(), module_name.partition(".")[0]
    if folder is None:
        return None
    own = next((path for path in (Path(folder, name), Path(folder, f"{name}.py")) if path.exists()), None)
    loaded = sys.modules.get(name)
    if own is None or loaded is None:
        return None
    places = [*getattr(loaded, "__path__", ()), getattr(loaded, "__file__", None)]
    found = next((Path(place) for place in places if place), None)
    if found is not None and found.is_relative_to(own):
        return None
    where = f" ({found})" if found else ""
    return f"{own} is hidden by the installed {name!r}{where}, which is found first; rename yours"


def clashes(folder: Path) -> list[str]:
    """Modules and packages in the folder that have the name of an installed one, in order."""
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    names = packages | {path.stem for path in folder.glob("*.py")}
    return sorted(name for name in names if name.isidentifier() and _is_elsewhere(name, folder.absolute()))


def _is_elsewhere(name: str, folder: Path) -> bool:
    with contextlib.suppress(ValueError):  # `__main__` has no specification
        found = find_spec(name)
        return found is not None and not (found.origin and Path(found.origin).is_relative_to(folder))
    return False


def _holds_python(folder: Path) -> bool:
    return any(True for pattern in ("*.py", "*/*.py") for _ in folder.glob(pattern))
