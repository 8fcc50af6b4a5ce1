"""The tests' process, which runs the tests and requests their calls from the program's process.

Names that the tests use but do not define are looked up in the program at each use. The answer is plain data,
or a stand-in for an object (`stand_ins.py`). The process holds no code, frame or memory of the program.
"""

import builtins
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from reward_servers.apart.errors import base_error, library_error, library_name
from reward_servers.apart.given import VIEWS, is_defined_by_tests, is_public, place, special_methods
from reward_servers.apart.link import Link, Message
from reward_servers.apart.plain import base_of, is_mutable, read, updated, written
from reward_servers.apart.special import COPIES, SPECIAL
from reward_servers.apart.stand_ins import (
    ClassStandIn,
    StandIn,
    class_of,
    derived_class,
    made,
)
from reward_servers.verifiers.unit_tests import PROGRAM

# Modules that a test may take from the program's imports; none acts by itself or equals anything.
_MODULES = (
    "bisect cmath collections copy datetime decimal fractions functools heapq itertools json math "
    "numpy operator os random re statistics string sys time typing"
)
MODULES = frozenset(_MODULES.split())
SHORT = {"np": "numpy"}  # names that tests use without an import
ENDINGS = ("send", "throw", "next")  # methods that may end an iteration, as `__next__` may
ERRORS = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException) and not issubclass(kind, BaseExceptionGroup)
}
LAST = object()  # marks the end of an iterator
OPTIMIZED = inspect.CO_OPTIMIZED  # code of a function, which looks its names up as they are used


class Program:
    """The program as the tests see it.

    Args:
        file: descriptor of the line to its process.
        called: names that the tests call; if empty, they may call built-in names that the program redefines.
    """

    def __init__(self, file: int, called: Sequence[str]) -> None:
        self._link = Link(file, self._answer)
        self._objects: list[Any] = []  # the tests' objects, by number
        self._places: dict[Any, int] = {}  # their numbers, by identity
        self._kinds: list[type] = []  # their classes, which the program can't call: `type` makes any class
        self._own_errors: list[BaseException] = []  # errors that the tests raised and the program may pass on
        self._stand_ins: dict[int, Any] = {}  # stand-ins of the program's objects, by number
        self._numbers: dict[int, int] = {}  # numbers of stand-ins that are functions or derived values, by id
        self._origins: dict[int, tuple[str, str]] = {}  # module and name of classes and functions, by id
        self._ending: dict[int, Any] = {}  # functions that the tests got as ENDINGS, by id
        names = self.ask("names") if not called else ()
        self.names = _Names(self, {str(name) for name in names if hasattr(builtins, str(name))})
        for name in PROGRAM:
            sys.modules[name] = _Module(name, self)

    def ask(self, do: str, *args: Any, **more: Any) -> Any:
        """Return the program's answer, and apply its changes to the arguments.

        Raises:
            Exception: the program raised one of this name.
            Lost: its process ended, or its answer is unreadable.
        """
        message = {
            "do": do,
            "args": [written(one, self._described) for one in args],
            "more": {name: written(one, self._described) for name, one in more.items()},
        }
        reply = self._link.ask(message)
        if printed := reply.get("printed"):
            sys.stdout.write(str(printed))
        arguments = [*args, *more.values()]
        for number, changed in reply.get("changed", {}).items():
            updated(arguments[int(number)], read(changed, self._object))
        if "error" in reply:
            raise self._raised(self._error(reply["error"]), do, args)
        value = reply["value"]
        if isinstance(value, list) and value[0] == "given":
            return arguments[value[1]]
        one = read(value, self._object)
        if do == "get" and args[1] in ENDINGS:
            self._ending[id(one)] = one
        return one

    def _raised(self, error: BaseException, do: str, args: Sequence[Any]) -> BaseException:
        """Return the error; replace an error that would end a loop of the tests, as in a generator."""
        ends = args[1] == "__next__" if do == "special" else do == "call" and id(args[0]) in self._ending
        if not isinstance(error, StopIteration) or ends:
            return error
        return RuntimeError("the program raised StopIteration")

    def named(self, name: str) -> Any:
        """Return the program's object of this name.

        Raises:
            NameError: the program has none.
        """
        value = self.ask("name", name)
        module, origin = self._origins.get(id(value), ("", ""))
        if module in MODULES and origin == name:
            return getattr(importlib.import_module(module), name, value)
        module = SHORT.get(name, name)
        if module in MODULES and _does_as_it_likes(value):
            return importlib.import_module(module)
        if isinstance(value, ClassStandIn):
            value._class_name = name
        return value

    # Requests of the program

    def _answer(self, request: Message) -> Message:
        if printed := request.get("printed"):
            sys.stdout.write(str(printed))
        try:
            args = [read(one, self._object) for one in request["args"]]
            more = {str(name): read(one, self._object) for name, one in request["more"].items()}
            value = written(self._done(request["do"], *args, **more), self._described)
            changed = {
                str(n): now
                for n, one in enumerate(args)
                if is_mutable(one) and (now := written(one, self._described)) != request["args"][n]
            }
            return {"value": value, **({"changed": changed} if changed else {})}
        except Exception as error:
            args = [one if isinstance(one, str | int) else repr(one) for one in error.args]
            number = None
            if is_defined_by_tests(error):
                number = len(self._own_errors)
                self._own_errors.append(error)
            return {"error": [self._kind_said(type(error)), written(args, repr), number]}

    def _done(self, do: str, *args: Any, **more: Any) -> Any:
        """Execute one of the program's few allowed uses of the tests' objects."""
        if do == "line":
            try:
                return input() + "\n"
            except EOFError:
                return ""
        if do == "input":
            return input(*args)
        of, *rest = args
        if do == "call" and callable(of):
            return of(*rest, **more)
        if do == "iterate":
            return list(of) if isinstance(of, VIEWS) else iter(of)
        if do == "next":
            one = next(of, LAST)
            return [] if one is LAST else [one]
        if do == "class":
            return [self._kinds[of].__name__, special_methods(self._kinds[of])]
        return self._done_to(do, of, str(rest[0]), *rest[1:], **more)

    def _done_to(self, do: str, of: Any, name: str, *args: Any, **more: Any) -> Any:
        if do == "special" and place(of) in self._places and name in (*special_methods(type(of)), *COPIES):
            return SPECIAL[name](of, *args, **more)
        if do == "set" and is_defined_by_tests(of) and not name.startswith("_"):
            return setattr(of, name, *args)
        if do == "get" and is_public(of, name):
            return getattr(of, name)
        raise AttributeError(name)

    # Descriptions of objects

    def _described(self, value: Any) -> Any:
        number = self._numbers.get(id(value))
        if isinstance(value, StandIn | ClassStandIn):
            number = value._class_number if isinstance(value, ClassStandIn) else value._stand_in_number
        if number is not None:
            return ["program", number]
        if isinstance(value, type) and value in ERRORS.values():
            return ["error type", value.__name__]
        plain = base_of(value)
        if plain is not value:
            return written(plain, self._described)
        if isinstance(value, type) and issubclass(value, BaseException):
            if known := library_name(value):
                return ["library error", *known, self._kind_said(base_error(value))]
            if is_defined_by_tests(value):
                base = self._kind_said(base_error(value))
                return ["tests error", self._place_of(value), value.__name__, base]
        if type(value) not in self._kinds:
            self._kinds.append(type(value))
        return ["tests", self._place_of(value), self._kinds.index(type(value))]

    def _place_of(self, value: Any) -> int:
        number = self._places.setdefault(place(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        return number

    def _object(self, encoded: Sequence[Any]) -> Any:
        """Return the stand-in of a program's object, or an object of the tests."""
        if encoded[0] in ("tests", "tests error"):
            return self._objects[encoded[1]]
        if encoded[0] == "library error":
            return library_error(str(encoded[1]), str(encoded[2])) or self._kind(encoded[3])
        if encoded[0] == "error":
            return self._error(encoded[1])
        if encoded[0] == "error type":
            return ERRORS[encoded[1]]
        number = int(encoded[1])
        if encoded[0] == "program":
            return self._stand_ins[number]
        one = self._made(encoded[0], number, encoded[2:])
        self._stand_ins[number] = one
        if not isinstance(one, StandIn | ClassStandIn):
            self._numbers[id(one)] = number
        return one

    def _made(self, form: str, number: int, rest: Sequence[Any]) -> Any:
        if form == "class":
            return self._class(number, rest[0])
        if form == "function":
            return self._function(number, rest[0])
        if form == "later":
            return self._later(number)
        if form == "module":
            name, kind = str(rest[0]), self._object(rest[1])
            return importlib.import_module(name) if name in MODULES else made(kind, self.ask, number, False)
        kind = self._object(rest[0])
        if form == "derived":
            value = read(rest[1], self._object)
            one = derived_class(kind, type(value))(value)
            one.__dict__["_stand_in"] = self.ask
            return one
        return made(kind, self.ask, number, bool(rest[1]))

    def _class(self, number: int, description: Mapping[str, Any]) -> type:
        name, doc = str(description["name"]), description["doc"]
        if description["errors"]:
            bases = tuple(self._kind(one) for one in description["errors"])
            return type(name, bases, {"__module__": "solution", "__doc__": doc, "__str__": _text_of})
        kind = class_of(name, doc, frozenset(description["has"]) & SPECIAL.keys())
        kind._class_ask, kind._class_number, kind._class_name = self.ask, number, ""
        self._origins[id(kind)] = (str(description["module"]).lstrip("_"), name)
        return kind

    def _later(self, number: int) -> Any:
        async def later() -> Any:
            return self.ask("wait", one)

        one = later()
        return one

    def _function(self, number: int, description: Mapping[str, Any]) -> Callable[..., Any]:
        def function(*args: Any, **more: Any) -> Any:
            return self.ask("call", stand_in, *args, **more)

        async def later(*args: Any, **more: Any) -> Any:
            return await self.ask("call", stand_in, *args, **more)

        stand_in: Any = later if description["is_async"] else function
        stand_in.__name__ = stand_in.__qualname__ = str(description["name"])
        stand_in.__doc__, stand_in.__module__ = description["doc"], "solution"
        self._origins[id(stand_in)] = (str(description["module"]).lstrip("_"), stand_in.__name__)
        if description["parameters"] is not None:
            stand_in.__signature__ = inspect.Signature(
                [
                    inspect.Parameter(
                        name,
                        inspect._ParameterKind(kind),
                        default=read(default, self._object) if has_default else inspect.Parameter.empty,
                    )
                    for name, kind, has_default, default in description["parameters"]
                ]
            )
        return stand_in

    def _error(self, encoded: Sequence[Any]) -> BaseException:
        kind, args, text, more, number = encoded
        if number is not None:
            return self._own_errors[number]
        kind, args = self._kind(kind), read(args, self._object)
        try:
            error = kind(*args)
        except Exception:
            error = kind.__new__(kind, *args)
        error.__dict__["_stand_in_text"] = str(text)
        for name, value in more.items():
            setattr(error, str(name), read(value, self._object))
        return error

    def _kind(self, encoded: Any) -> type[BaseException]:
        kind = ERRORS[encoded] if isinstance(encoded, str) else self._object(encoded)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ValueError(f"{encoded!r:.80} is no exception")
        return kind

    def _kind_said(self, kind: type) -> Any:
        while kind not in ERRORS.values():
            if id(kind) in self._numbers or library_name(kind) or is_defined_by_tests(kind):
                return self._described(kind)
            kind = base_error(kind)
        return kind.__name__


class _Names(dict[str, Any]):
    """The tests' module with Python's, the tests' and the program's names, looked up at each use."""

    def __init__(self, program: Program, not_built_in: set[str]) -> None:
        super().__init__({name: one for name, one in vars(builtins).items() if name not in not_built_in})
        self["__builtins__"] = {name: one for name, one in vars(builtins).items() if name not in not_built_in}
        self["__name__"] = "__main__"
        self._program = program

    def __missing__(self, name: str) -> Any:
        try:
            one = self._program.named(name)
        except NameError:
            raise KeyError(name) from None
        if isinstance(one, types.FunctionType | ClassStandIn):
            self[name] = one
        return one

    def run(self, code: str) -> None:
        """Run a test's text."""
        compiled = compile(code, "tests.py", "exec", dont_inherit=True)
        for name in _names_in_classes(compiled):  # Python looks names up only in this dictionary
            if name not in self:
                try:
                    self[name] = self[name]
                except KeyError:
                    continue
        exec(compiled, self)


class _Module(types.ModuleType):
    """The program, as a module that tests import."""

    def __init__(self, name: str, program: Program) -> None:
        super().__init__(name)
        object.__setattr__(self, "_stand_in_program", program)

    def __getattr__(self, name: str) -> Any:
        program = object.__getattribute__(self, "_stand_in_program")
        if name == "__all__":
            held = {*vars(builtins), *MODULES, *SHORT, *program.names}
            return [one for one in program.ask("names") if not one.startswith("_") and one not in held]
        if self.__name__ == "__main__" and name in program.names:
            return program.names[name]
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return program.named(name)
        except NameError:
            raise AttributeError(f"the program has no {name}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        program = object.__getattribute__(self, "_stand_in_program")
        program.names.pop(name, None)
        program.ask("set name", name, value)

    def __delattr__(self, name: str) -> None:
        program = object.__getattribute__(self, "_stand_in_program")
        program.names.pop(name, None)
        program.ask("delete name", name)


def _text_of(error: BaseException) -> str:
    return str(error.__dict__.get("_stand_in_text", BaseException.__str__(error)))


def _does_as_it_likes(value: Any) -> bool:
    """Return whether the program answers for this value's attributes."""
    return isinstance(value, ClassStandIn) or hasattr(type(value), "_stand_in_ask")


def _names_in_classes(code: types.CodeType) -> Iterator[str]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            if not inner.co_flags & OPTIMIZED:
                yield from inner.co_names
            yield from _names_in_classes(inner)
