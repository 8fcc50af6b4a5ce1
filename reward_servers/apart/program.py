"""The program's process: it runs the program, and does what the tests' process asks of it.

Nothing here is trusted: the program may change all of it. Then it merely gives other answers.
"""

import asyncio
import builtins
import inspect
import io
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reward_servers.apart.link import Link, Lost, Message
from reward_servers.apart.plain import BASES, MUTABLE, base_of, is_mutable, read, written
from reward_servers.apart.special import SPECIAL

FUNCTIONS = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
)
IMMUTABLE = tuple(kind for kind in BASES if kind not in MUTABLE)


class Program:
    """Objects of the program by number, and what may be done with them."""

    def __init__(self, main: types.ModuleType, file: int) -> None:
        self._main = main
        self._link = Link(file, self._answer)
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}  # by id; the objects are kept, so that no id comes twice
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

    def _answer(self, said: Message) -> Message:
        answer: dict[str, Any]
        try:
            args = [read(one, self._object) for one in said.get("args", ())]
            more = {name: read(one, self._object) for name, one in said.get("more", {}).items()}
            value = self._deeds[said["do"]](*args, **more)
            given = [*args, *more.values()]
            place = next((n for n, one in enumerate(given) if one is value and is_mutable(one)), None)
            answer = {"value": ["given", place]} if place is not None else {"value": self._written(value)}
            before = [*said.get("args", ()), *said.get("more", {}).values()]
            changed = {
                str(place): self._written(one)
                for place, one in enumerate(given)
                if is_mutable(one) and self._known(one) != before[place]
            }
            answer |= {"changed": changed} if changed else {}
        except (Lost, MemoryError):
            raise
        except BaseException as error:
            answer = {"error": self._error(error)}
        return answer | self._what_was_printed()

    def _ask(self, do: str, *args: Any, **more: Any) -> Any:
        """Return what the tests' process answers; raise what it raised."""
        said = self._link.ask(
            {
                "do": do,
                "args": [self._written(one) for one in args],
                "more": {name: self._written(one) for name, one in more.items()},
                **self._what_was_printed(),
            }
        )
        if "error" in said:
            kind, args = self._kind(said["error"][0]), read(said["error"][1], self._object)
            raise kind(*args)
        return read(said["value"], self._object)

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

    # What is said of an object

    def _written(self, value: Any) -> Any:
        return written(value, self._described)

    def _known(self, value: Any) -> Any:
        """Return a value as the tests said it, where it is still the same."""
        return written(value, self._reference)

    def _reference(self, value: Any) -> Any:
        if isinstance(value, _Foreign):
            return ["tests", object.__getattribute__(value, "number")]
        return ["program", self._numbers.get(id(value), -1)]

    def _described(self, value: Any) -> Any:
        if isinstance(value, _Foreign):
            return ["tests", object.__getattribute__(value, "number")]
        if id(value) in self._numbers:
            return ["program", self._numbers[id(value)]]
        if isinstance(value, BaseException):
            return ["error", self._error(value)]
        # What holds this object comes first: its class has a number before it.
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
            return self._reference(value) if id(value) in self._numbers else repr(value)

        more = {name: written(one, text_of) for name, one in vars(error).items() if isinstance(name, str)}
        return [self._kind_said(type(error)), written(error.args, text_of), str(error), more]

    def _kind_said(self, kind: type) -> Any:
        is_known = getattr(builtins, kind.__name__, None) is kind
        return kind.__name__ if is_known else self._described(kind)

    def _kind(self, said: Any) -> type[BaseException]:
        kind = getattr(builtins, said) if isinstance(said, str) else self._object(said)
        return kind if isinstance(kind, type) and issubclass(kind, BaseException) else RuntimeError

    def _object(self, said: Sequence[Any]) -> Any:
        """Return the object of a number: the program's, or what stands for the tests'."""
        if said[0] == "program":
            return self._objects[said[1]]
        if said[0] == "error type":
            return self._kind(said[1])
        if said[0] == "error":
            return self._kind(said[1][0])(*read(said[1][1], self._object))
        return _Foreign(self._ask, said[1])


class _Foreign:
    """An object of the tests: it is called, iterated, or has attributes, all in the tests' process."""

    def __init__(self, ask: Callable[..., Any], number: int) -> None:
        object.__setattr__(self, "ask", ask)
        object.__setattr__(self, "number", number)

    def __call__(self, *args: Any, **more: Any) -> Any:
        return object.__getattribute__(self, "ask")("call", self, *args, **more)

    def __iter__(self) -> Any:
        ask = object.__getattribute__(self, "ask")
        iterator = ask("iterate", self)
        while (one := ask("next", iterator)) != []:
            yield one[0]

    def __next__(self) -> Any:
        if (one := object.__getattribute__(self, "ask")("next", self)) == []:
            raise StopIteration
        return one[0]

    def __getattr__(self, name: str) -> Any:
        return object.__getattribute__(self, "ask")("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "ask")("set", self, name, value)


class _Input(io.TextIOBase):
    """Standard input, which is that of the tests' process."""

    def __init__(self, line: Callable[[], str]) -> None:
        self._line = line

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        return self._line()

    def read(self, size: int | None = -1, /) -> str:
        return "".join(iter(self._line, ""))


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
