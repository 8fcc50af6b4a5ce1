"""The program's process, which runs the program and executes the tests' requests.

Nothing here is trusted. The program may change all of it, but can only change its answers.
"""

import asyncio
import builtins
import contextlib
import inspect
import io
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reward_servers.apart.errors import base_error, library_error, library_name
from reward_servers.apart.foreign import foreign, foreign_class
from reward_servers.apart.link import Link, Lost, Message
from reward_servers.apart.plain import BASES, MUTABLE, base_of, is_mutable, read, updated, written
from reward_servers.apart.special import SPECIAL

FUNCTIONS = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
)
IMMUTABLE = tuple(kind for kind in BASES if kind not in MUTABLE)


class Program:
    """The program's objects by number, and their allowed uses."""

    def __init__(self, main: types.ModuleType, file: int) -> None:
        self._main = main
        self._link = Link(file, self._answer)
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}  # by id; the objects are kept, so that no id comes twice
        self._foreign: dict[int, Any] = {}  # stand-ins of the tests' objects, by number
        self._said: dict[int, Any] = {}  # how the tests said these, by id
        self._kinds: dict[int, type] = {}  # their classes, by number
        self._raised: dict[int, tuple[BaseException, int]] = {}  # errors of the tests, by id
        self._printed = sys.stdout = io.StringIO()
        sys.stdin = _Input(self._line)  # type: ignore[assignment]
        builtins.input = self._input
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deeds: dict[str, Callable[..., Any]] = {
            "name": self._named,
            "names": lambda: [name for name in vars(main) if not name.startswith("__")],
            "set name": lambda name, value: setattr(main, name, value),
            "delete name": lambda name: delattr(main, name),
            "call": lambda of, *args, **more: of(*args, **more),
            "get": getattr,
            "set": setattr,
            "delete": delattr,
            "special": lambda of, name, *args, **more: SPECIAL[name](of, *args, **more),
            "wait": self._wait,
            "base": base_of,
            "is instance": isinstance,
            "is subclass": issubclass,
        }

    def run(self) -> None:
        """Answer until the tests end."""
        self._link.answer_all()

    def _answer(self, request: Message) -> Message:
        answer: dict[str, Any]
        arguments: list[Any] = []
        before = [*request.get("args", ()), *request.get("more", {}).values()]
        try:
            args = [read(one, self._object) for one in request.get("args", ())]
            more = {name: read(one, self._object) for name, one in request.get("more", {}).items()}
            arguments = [*args, *more.values()]
            value = self._deeds[request["do"]](*args, **more)
            place = next((n for n, one in enumerate(arguments) if one is value and is_mutable(one)), None)
            answer = {"value": ["given", place]} if place is not None else {"value": self._written(value)}
            answer |= self._changed(arguments, before)
        except (Lost, MemoryError):
            raise
        except BaseException as error:
            answer = {"error": self._error(error)}
            with contextlib.suppress(Exception):
                answer |= self._changed(arguments, before)
        return answer | self._what_was_printed()

    def _changed(self, arguments: Sequence[Any], before: Sequence[Any]) -> dict[str, Any]:
        changed = {
            str(place): self._written(one)
            for place, one in enumerate(arguments)
            if is_mutable(one) and self._known(one) != before[place]
        }
        return {"changed": changed} if changed else {}

    def _ask(self, do: str, *args: Any, **more: Any) -> Any:
        """Return the answer of the tests' process, or raise its exception."""
        reply = self._link.ask(
            {
                "do": do,
                "args": [self._written(one) for one in args],
                "more": {name: self._written(one) for name, one in more.items()},
                **self._what_was_printed(),
            }
        )
        for place, changed in reply.get("changed", {}).items():
            updated(args[int(place)], read(changed, self._object))
        if "error" in reply:
            raise self._error_of_tests(*reply["error"])
        return read(reply["value"], self._object)

    def _what_was_printed(self) -> dict[str, str]:
        printed = self._printed.getvalue()
        self._printed.seek(0)
        self._printed.truncate()
        return {"printed": printed} if printed else {}

    def _named(self, name: str) -> Any:
        try:
            return getattr(self._main, name)
        except AttributeError:
            raise NameError(f"name {name!r} is not defined") from None

    def _wait(self, awaitable: Any) -> Any:
        async def waited() -> Any:
            return await awaitable

        self._loop = self._loop or asyncio.new_event_loop()
        return self._loop.run_until_complete(waited())

    def _line(self) -> str:
        return str(self._ask("line"))

    def _input(self, prompt: Any = "", /) -> str:
        return str(self._ask("input", str(prompt)))

    # Description of an object

    def _written(self, value: Any) -> Any:
        return written(value, self._described)

    def _known(self, value: Any) -> Any:
        """Return a value in the tests' words if it is unchanged."""
        return written(value, self._reference)

    def _reference(self, value: Any) -> Any:
        return self._said.get(id(value)) or ["program", self._numbers.get(id(value), -1)]

    def _described(self, value: Any) -> Any:
        if id(value) in self._said:
            return self._said[id(value)]
        if id(value) in self._numbers:
            return ["program", self._numbers[id(value)]]
        if isinstance(value, BaseException):
            return ["error", self._error(value)]
        # Number an object's class before the object itself.
        kind = None if isinstance(value, (type, *FUNCTIONS)) else self._written(type(value))
        self._numbers[id(value)] = number = len(self._objects)
        self._objects.append(value)
        if isinstance(value, type):
            return ["class", number, self._class(value)]
        if isinstance(value, FUNCTIONS):
            return ["function", number, _function(value)]
        if isinstance(value, types.ModuleType):
            return ["module", number, value.__name__, kind]
        if isinstance(value, types.CoroutineType):
            return ["later", number]
        if isinstance(value, IMMUTABLE):
            return ["derived", number, kind, self._written(base_of(value))]
        return ["object", number, kind, isinstance(value, BASES)]

    def _class(self, kind: type) -> dict[str, Any]:
        is_error = issubclass(kind, BaseException)
        bases = [self._kind_said(base) for base in kind.__bases__] if is_error else []
        return {
            "name": kind.__name__,
            "module": kind.__module__,
            "doc": kind.__doc__ if isinstance(kind.__doc__, str) else None,
            "errors": bases,
            "has": [name for name in SPECIAL if _has(kind, name)],
        }

    def _error(self, error: BaseException) -> list[Any]:
        def text_of(value: Any) -> Any:
            is_known = id(value) in self._numbers or id(value) in self._said
            return self._reference(value) if is_known else repr(value)

        more = {name: written(one, text_of) for name, one in vars(error).items() if isinstance(name, str)}
        _, number = self._raised.get(id(error), (None, None))
        return [self._kind_said(type(error)), written(error.args, text_of), str(error), more, number]

    def _error_of_tests(self, kind: Any, args: Any, number: int | None) -> BaseException:
        error = _made(self._kind(kind), read(args, self._object))
        if number is not None:
            self._raised[id(error)] = error, number
        return error

    def _kind_said(self, kind: type) -> Any:
        if getattr(builtins, kind.__name__, None) is kind:
            return kind.__name__
        if known := library_name(kind):
            return ["library error", *known, self._kind_said(base_error(kind))]
        return self._described(kind)

    def _kind(self, encoded: Any) -> type[BaseException]:
        kind = getattr(builtins, encoded) if isinstance(encoded, str) else self._object(encoded)
        return kind if isinstance(kind, type) and issubclass(kind, BaseException) else RuntimeError

    def _object(self, encoded: Sequence[Any]) -> Any:
        """Return the object of a number: the program's, or a stand-in for the tests'."""
        if encoded[0] == "program":
            return self._objects[encoded[1]]
        if encoded[0] == "error type":
            return self._kind(encoded[1])
        if encoded[0] == "error":
            return _made(self._kind(encoded[1][0]), read(encoded[1][1], self._object))
        if encoded[0] == "library error":
            return library_error(encoded[1], encoded[2]) or self._kind(encoded[3])
        number = int(encoded[1])
        if number not in self._foreign:
            self._foreign[number] = one = self._stands_for(encoded)
            self._said[id(one)] = encoded
        return self._foreign[number]

    def _stands_for(self, encoded: Sequence[Any]) -> Any:
        """Return the stand-in for a tests' object: an exception's class, or an object."""
        if encoded[0] == "tests error":
            return type(encoded[2], (self._kind(encoded[3]),), {"__module__": "__main__"})
        number = int(encoded[2])
        if number not in self._kinds:
            self._kinds[number] = foreign_class(*self._ask("class", number))
        return foreign(self._kinds[number], self._ask)


class _Input(io.TextIOBase):
    """Standard input of the tests' process."""

    def __init__(self, line: Callable[[], str]) -> None:
        self._line = line

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        return self._line()

    def read(self, size: int | None = -1, /) -> str:
        return "".join(iter(self._line, ""))


def _made(kind: type[BaseException], args: Sequence[Any]) -> BaseException:
    try:
        return kind(*args)
    except TypeError:
        return kind.__new__(kind, *args)


def _has(kind: type, name: str) -> bool:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None) is not None


def _function(value: Any) -> Mapping[str, Any]:
    try:
        parameters = [
            [one.name, int(one.kind), one.default is not one.empty, written(one.default, lambda _: None)]
            for one in inspect.signature(value).parameters.values()
        ]
    except (ValueError, TypeError):
        parameters = None
    doc = getattr(value, "__doc__", None)
    return {
        "name": str(getattr(value, "__name__", "function")),
        "module": str(getattr(value, "__module__", "")),
        "doc": doc if isinstance(doc, str) else None,
        "parameters": parameters,
        "is_async": inspect.iscoroutinefunction(value),
    }
