"""The program's allowed uses of an object that the tests passed to it."""

import types
from typing import Any

from reward_servers.apart.special import SPECIAL

AWAITED = ("__aiter__", "__anext__", "__aenter__", "__aexit__", "__await__")
# Classes of the library whose attributes a program may read: none leads to a file, a frame or code.
_OPEN = (
    "_io.StringIO _io.BytesIO random.Random re.Pattern re.Match unittest.mock.NonCallableMock array.array "
    "threading.Event threading.Condition _thread.lock _thread.RLock queue.Queue _queue.SimpleQueue "
    "builtins.dict_keys builtins.dict_items builtins.dict_values"
)
OPEN = frozenset(_OPEN.split())
# These are sent whole, where they are iterated.
VIEWS: Any = (type({}.keys()), type({}.values()), type({}.items()))


def place(value: Any) -> Any:
    """Return a key for one object; its bound methods have the same key at each mention."""
    if type(value) is types.MethodType:
        return id(value.__self__), id(value.__func__)
    if type(value) is types.BuiltinMethodType and not isinstance(value.__self__, types.ModuleType | None):
        return id(value.__self__), value.__name__
    return id(value)


def is_defined_by_tests(of: Any) -> bool:
    return (of if isinstance(of, type) else type(of)).__module__ == "__main__"


def is_public(of: Any, name: str) -> bool:
    """Return whether the program may read this attribute, which must not lead to code or a frame."""
    if name in ("__name__", "__qualname__", "__doc__"):
        return not isinstance(of, types.ModuleType)
    if name.startswith("_") or name in ("configure_mock", "attach_mock"):  # these replace a mock's assertions
        return False
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(of).__mro__}
    return is_defined_by_tests(of) or not OPEN.isdisjoint(kinds)


def special_methods(kind: type) -> list[str]:
    """Return the special methods of a tests' class, except those of every object.

    >>> special_methods(type("Bag", (), {"__len__": lambda self: 3}))
    ['__len__']
    """
    having = [vars(base) for base in kind.__mro__ if base is not object]
    first = {
        name: next((one[name] for one in having if name in one), None)
        for name in SPECIAL
        if name not in AWAITED
    }
    return [name for name, method in first.items() if method is not None]
