"""Let Python find Whetstone's packages first, whatever the user's folders hold.

A user's project may have packages `services`, `learner`, `conf` or `contracts`. Python searches the working
folder of `python -m`, and the folders of PYTHONPATH, before everything that is installed.
"""

import os
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

OURS = Path(__file__).absolute().parents[1]
NAMES = ("conf", "contracts", "learner", "reward_servers", "rollout_workers", "services")
PYTHONPATH = "PYTHONPATH"
MORE_FOLDERS = "WHETSTONE_PATH"  # as in contracts.processes.working_folder, which can't be imported yet


def are_names_ours() -> bool:
    """Return whether our names lead this process to our packages, not to the user's; import none."""
    return all(_is_ours(name) for name in NAMES)


def leave_users_folders_to_the_end() -> None:
    """Search the user's folders last if they hold a package of one of our names.

    This applies to this process and all its children. Call it before any import of our packages.
    """
    try:
        working = os.getcwd()
    except FileNotFoundError:  # the folder was deleted
        return
    pythonpath = _folders(os.environ.get(PYTHONPATH, ""))
    folders = dict.fromkeys(map(os.path.abspath, sys.path))
    aside = [folder for folder in folders if folder in (working, *pythonpath) and _clashes(folder)]
    if not aside:
        return
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) not in aside]
    if pythonpath:
        os.environ[PYTHONPATH] = os.pathsep.join(folder for folder in pythonpath if folder not in aside)
    more = [*aside, *_folders(os.environ.get(MORE_FOLDERS, ""))]
    os.environ[MORE_FOLDERS] = os.pathsep.join(dict.fromkeys(more))


def _is_ours(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.origin is not None and Path(spec.origin).absolute().parents[1] == OURS


def is_users(name: str, module: Any) -> bool:
    """Return whether a module comes from a user's file, neither ours nor installed."""
    file, top = getattr(module, "__file__", None), name.partition(".")[0]
    if not isinstance(file, str) or top in (*NAMES, "whetstone"):
        return False
    path = Path(os.path.abspath(file))
    if not {"site-packages", "dist-packages"}.isdisjoint(path.parts):
        return False
    return not any(path.is_relative_to(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


def folders_of_modules() -> str:
    """Return the folders of the user's modules for this process, in PYTHONPATH's form."""
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders = [
        os.path.abspath(folder)
        for folder in sys.path
        if os.path.isdir(folder or os.curdir)
        and not any(os.path.abspath(folder).startswith(place) for place in installed)
    ]
    return os.pathsep.join(dict.fromkeys([*folders, *_folders(os.environ.get(MORE_FOLDERS, ""))]))


def _folders(path: str) -> list[str]:
    return [os.path.abspath(folder) for folder in path.split(os.pathsep) if folder]


def _clashes(folder: str) -> bool:
    path = Path(folder)
    return path != OURS and any((path / name).is_dir() or (path / f"{name}.py").is_file() for name in NAMES)
