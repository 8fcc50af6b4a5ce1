"""Exceptions of Python's library, which have the same meaning in both processes."""

import sys
from typing import Any

# Their exceptions say that a test is skipped, or ends.
OF_TESTS = ("unittest", "doctest", "bdb", "pdb")


def library_error(module: str, name: str) -> type[Exception] | None:
    """Return an exception of a loaded module of the library; None if there is none.

    >>> library_error("json.decoder", "JSONDecodeError"), library_error("unittest.case", "SkipTest")
    (<class 'json.decoder.JSONDecodeError'>, None)
    """
    package = module.partition(".")[0]
    if package not in (*sys.stdlib_module_names, "numpy") or package in OF_TESTS:
        return None
    kind: Any = getattr(sys.modules.get(module), name, None)
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else None


def base_error(kind: type) -> type:
    """Return an exception's base exception."""
    return next(base for base in kind.__mro__[1:] if issubclass(base, BaseException))


def library_name(kind: type) -> tuple[str, str] | None:
    """Return a library exception's module and name; None for another class."""
    module, name = str(kind.__module__), kind.__name__
    return (module, name) if library_error(module, name) is kind else None
