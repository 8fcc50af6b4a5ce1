"""Stand-ins for the program's objects in the tests' process; each use becomes a request to the program.

    tests do this to an object of the program     result
    call it, or a method; read or set attributes  the program does it
    len, str, bool, iteration, an index, hash     the program answers with plain data
    compare it with another of its objects        the program answers
    compare it with plain data                    never equal, without a request
    compute with it and plain data                refused, except for classes that the tests construct
    look for plain data in it                     likewise; in others the tests search the yielded values

So an object whose `__eq__` is always true equals no number, and an object whose `__sub__` is always 0 is near
no number.
"""

from collections.abc import Callable, Iterator
from typing import Any

from reward_servers.apart.special import (
    ARITHMETIC,
    COMPARISONS,
    CONTAINS,
    CONVERSIONS,
    COPIES,
    IN_PLACE,
    REFLECTED,
)

Ask = Callable[..., Any]
# Attributes with such names are the program's; with others, as NumPy's `__array__`, there are none.
_NAMED = (
    "__dict__ __name__ __qualname__ __members__ __annotations__ __wrapped__ __dataclass_fields__ "
    "__init__ __match_args__ __self__ __func__ __defaults__ __mro__ __bases__ __code__ __closure__"
)
NAMED = frozenset(_NAMED.split())


class Refused(TypeError):
    """A forbidden use of a program's object."""


class StandIn:
    """An object of the program. Its slots have names that no program would use."""

    __slots__ = ("_stand_in_ask", "_stand_in_is_made", "_stand_in_is_plain", "_stand_in_number")

    def __init_subclass__(cls, *, is_ours: bool = False) -> None:
        if not is_ours:
            raise Refused("a test can't derive a class from one of the program's")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in NAMED:
            raise AttributeError(name)
        return self._stand_in_ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._stand_in_ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._stand_in_ask("delete", self, name)


def made(kind: type, ask: Ask, number: int, is_plain: bool) -> Any:
    """Return a stand-in of this class.

    Args:
        is_plain: the object's class derives from list, dict or set, and compares like its base.
    """
    one: Any = object.__new__(kind)
    for name, value in (("ask", ask), ("number", number), ("is_plain", is_plain), ("is_made", False)):
        object.__setattr__(one, f"_stand_in_{name}", value)
    return one


def is_of_the_program(value: Any) -> bool:
    return isinstance(type(value), ClassStandIn)


class ClassStandIn(type):
    """A class of the program; its calls make objects in the program.

    `name` is the tests' name for it; a name in a class's spelling marks a class.
    """

    _class_ask: Ask
    _class_number: int
    _class_name: str

    def __call__(cls, *args: Any, **more: Any) -> Any:
        one = cls._class_ask("call", cls, *args, **more)
        if isinstance(one, StandIn) and _is_a_class_name(cls._class_name):
            object.__setattr__(one, "_stand_in_is_made", True)
        return one

    def __getattr__(cls, name: str) -> Any:
        if name.startswith(("__", "_class_")) and name not in NAMED:
            raise AttributeError(name)
        return cls._class_ask("get", cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        if name.startswith(("_class_", "__abstract")):
            type.__setattr__(cls, name, value)
        else:
            cls._class_ask("set", cls, name, value)

    def __instancecheck__(cls, one: Any) -> bool:
        return (is_of_the_program(one) or hasattr(type(one), "_stand_in_ask")) and bool(
            cls._class_ask("is instance", one, cls)
        )

    def __subclasscheck__(cls, kind: type) -> bool:
        return isinstance(kind, ClassStandIn) and bool(cls._class_ask("is subclass", kind, cls))

    def __iter__(cls) -> Iterator[Any]:
        return iter(cls._class_ask("special", cls, "__iter__"))

    def __len__(cls) -> int:
        return int(cls._class_ask("special", cls, "__len__"))

    def __bool__(cls) -> bool:
        return True

    def __getitem__(cls, key: Any) -> Any:
        return cls._class_ask("special", cls, "__getitem__", key)


def class_of(
    name: str, doc: str | None, has: frozenset[str], bases: tuple[type, ...] = (StandIn,)
) -> ClassStandIn:
    """Return a class with the special methods of the program's class."""
    methods: dict[str, Any] = {"__slots__": (), "__doc__": doc, "__module__": "solution", "__hash__": None}
    for known, method in SPECIAL_METHODS.items():
        if known in has or known in COPIES:
            methods[known] = method
    if "__await__" in has:
        methods["__await__"] = lambda self: _wait(self).__await__()
    return ClassStandIn(name, bases, methods, is_ours=True)


def derived_class(kind: type, base: type) -> type:
    """Return a class with plain values; its other attributes and methods are the program's."""

    def get(self: Any, name: str) -> Any:
        if name.startswith("__") and name not in NAMED:
            raise AttributeError(name)
        return self._stand_in_ask("get", self, name)

    def ask(self: Any, *args: Any, **more: Any) -> Any:
        return self.__dict__["_stand_in"](*args, **more)

    methods = {name: _converted(name) for name in ("__str__", "__repr__", "__format__")}
    return type(
        kind.__name__,
        (base,),
        {"__getattr__": get, "__module__": "solution", "_stand_in_ask": ask, **methods},
    )


def _is_a_class_name(name: str) -> bool:
    return name[:1].isupper() and name.isalnum() and not name.isupper()


async def _wait(one: Any) -> Any:
    return one._stand_in_ask("wait", one)


def _converted(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **more: Any) -> Any:
        return self._stand_in_ask("special", self, name, *args, **more)

    return method


def _compared(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if is_of_the_program(other):
            return self._stand_in_ask("special", self, name, other)
        if self._stand_in_is_plain:
            return COMPARISONS[name](self._stand_in_ask("base", self), other)
        return NotImplemented

    return method


def _computed(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any, *more: Any) -> Any:
        if self._stand_in_is_plain and not is_of_the_program(other):
            return (ARITHMETIC | REFLECTED | IN_PLACE)[name](self._stand_in_ask("base", self), other)
        if not (is_of_the_program(other) or self._stand_in_is_made):
            raise Refused(
                f"{name} of an object of the program's class {type(self).__name__} and plain data: "
                "expected a number, a text or a list from the program"
            )
        one = self._stand_in_ask("special", self, name, other, *more)
        if isinstance(one, StandIn) and self._stand_in_is_made:
            object.__setattr__(one, "_stand_in_is_made", True)
        return one

    return method


def _contains(self: Any, one: Any) -> bool:
    if is_of_the_program(one) or self._stand_in_is_made:
        return bool(self._stand_in_ask("special", self, CONTAINS, one))
    return any(one is other or one == other for other in self)


SPECIAL_METHODS: dict[str, Callable[..., Any]] = {
    **{name: _converted(name) for name in (*CONVERSIONS, *COPIES)},
    **{name: _compared(name) for name in COMPARISONS},
    **{name: _computed(name) for name in (*ARITHMETIC, *REFLECTED, *IN_PLACE)},
    CONTAINS: _contains,
}
