"""Modules that other processes of a run can import, and modules that only the caller has."""

import sys
import sysconfig
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from whetstone.own_place import NAMES, OURS

INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
MAINS = ("__main__", "__mp_main__")


def is_importable(value: Any) -> bool:
    """Return whether another process gets a function or class by its address."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not isinstance(module, str) or module not in sys.modules or not has_module(module):
        return False
    value_there: Any = sys.modules[module]
    for part in name.split("."):
        value_there = getattr(value_there, part, None)
    return value_there is value


def has_module(name: str) -> bool:
    """Return whether another process finds the same module.

    It finds installed modules, and modules in the folders of this process's path. It does not find a
    notebook, a script, a module made while the program ran, or one with the name of a package of ours.
    """
    top = name.partition(".")[0]
    if top in MAINS:
        return False
    module = sys.modules.get(top)
    if top in NAMES:
        return _file(module) is not None and Path(str(_file(module))).is_relative_to(OURS)
    if any(finder.find_spec(top) for finder in (BuiltinImporter, FrozenImporter)):
        return True
    if (file := _file(module)) is not None and file.startswith(INSTALLED):
        return True
    spec = PathFinder.find_spec(top)
    if spec is None:
        return any(
            finder.find_spec(top, None)  # an editable installation
            for finder in sys.meta_path
            if "__editable__" in getattr(finder, "__module__", "") + getattr(finder, "__name__", "")
        )
    return module is None or _file(module) is None or spec.origin in (_file(module), None)


def modules_here_alone() -> list[ModuleType]:
    """Return the loaded modules that no other process finds, so that all in them travels by value."""
    modules = []
    for name, module in list(sys.modules.items()):
        if type(module) is not ModuleType or name.partition(".")[0] in (*MAINS, "whetstone"):
            continue
        file = _file(module)
        if file is not None and file.startswith(INSTALLED):
            continue
        if not has_module(name):
            modules.append(module)
    return modules


def _file(module: Any) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else None
