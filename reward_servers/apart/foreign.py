"""Stand-ins for the tests' objects in the program's process; the tests' process executes each use.

A stand-in has its class's special methods. Its attributes are those that the tests' process reveals.
"""

from collections.abc import Callable, Sequence
from typing import Any

from reward_servers.apart.special import COPIES, SPECIAL

Ask = Callable[..., Any]


class Foreign:
    """An object of the tests."""

    __slots__ = ("__weakref__", "_foreign_ask")

    def __getattr__(self, name: str) -> Any:
        return self._foreign_ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._foreign_ask("set", self, name, value)


def foreign_class(name: str, has: Sequence[str]) -> type:
    """Return a class with these special methods."""
    methods = {known: _forwarded(known) for known in (*has, *COPIES) if known in SPECIAL}
    methods |= {known: method for known, method in METHODS.items() if known in has} | COPYING
    return type(name, (Foreign,), {"__slots__": (), "__doc__": DOC, "__module__": "__main__", **methods})


def foreign(kind: type, ask: Ask) -> Any:
    """Return a stand-in of this class."""
    one: Any = object.__new__(kind)
    object.__setattr__(one, "_foreign_ask", ask)
    return one


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **more: Any) -> Any:
        return self._foreign_ask("special", self, name, *args, **more)

    return method


def _call(self: Any, *args: Any, **more: Any) -> Any:
    return self._foreign_ask("call", self, *args, **more)


def _iterate(self: Any) -> Any:
    iterator = self._foreign_ask("iterate", self)
    if isinstance(iterator, list):
        yield from iterator
        return
    while some := self._foreign_ask("next", iterator):
        yield from some


def _next(self: Any) -> Any:
    if (one := self._foreign_ask("next", self)) == []:
        raise StopIteration
    return one[0]


def _exit(self: Any, *_: Any) -> Any:
    return self._foreign_ask("special", self, "__exit__", None, None, None)


def _deep_copy(self: Any, _: Any) -> Any:
    return self._foreign_ask("special", self, "__deepcopy__")


METHODS: dict[str, Any] = {"__call__": _call, "__iter__": _iterate, "__next__": _next, "__exit__": _exit}
COPYING = {"__deepcopy__": _deep_copy}
DOC: Any = property(lambda self: self._foreign_ask("get", self, "__doc__"))
