"""Tools as Python functions: type hints and docstrings become JSON schemas, and arguments are checked.

A tool's name is `package.module:function`, or `package.module:Class`, whose public methods are tools that
share an object. Built-in tools have short names.
"""

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from contracts.components import import_module
from contracts.errors import InputError, did_you_mean
from contracts.rollout import Prompt
from rollout_workers.tools.timed_calls import TimedCalls
from rollout_workers.tools.tool_calls import Schemas

# Found by name, like a user's tools: one file each.
TOOLS = {
    "calculator": "services.data.tools.calculator:calculator",
    "python": "services.data.tools.python:Python",
    "search": "services.data.tools.search:Search",
}
LEFT_S = 10.0  # time for calls of an earlier episode to end
OF_AN_EPISODE = ("reset", "close")  # methods of a class that are no tools


class ToolError(Exception):
    """Failure of a call, in words for the model."""


class Toolbox(Protocol):
    """Tools that an environment offers; `call` raises `ToolError` with a text for the model."""

    schemas: Schemas

    def reset(self, prompt: Prompt) -> None:
        """Begin an episode."""
        ...

    def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> str: ...

    def close(self) -> None: ...


class FunctionTools:
    """Toolbox of Python functions, which run in this process.

    Example: `FunctionTools(["calculator"]).call("calculator", {"expression": "6 * 7"}, 5.0) == "42"`

    Raises:
        InputError: a name leads to no function, or a function has no schema.
    """

    def __init__(self, entries: Sequence[str | Mapping[str, Any]]) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        self._objects: list[Any] = []
        self._calls = TimedCalls()
        schemas = []
        for entry in entries:
            for function in self._found(entry):
                schemas.append(schema_of(function))
                name = schemas[-1]["function"]["name"]
                if name in self._functions:
                    raise InputError(f"environment.tools: two tools have the name {name!r}; expected one")
                self._functions[name] = function
        self.schemas: Schemas = tuple(schemas)

    def reset(self, prompt: Prompt) -> None:
        """Begin an episode.

        Raises:
            RuntimeError: a call of an earlier episode still runs, so this process must end.
        """
        if num_left := self._calls.num_left(LEFT_S):
            raise RuntimeError(f"{num_left} calls of tools still run after their time")
        for tool in self._objects:
            if hasattr(tool, "reset"):
                tool.reset(prompt)

    def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> str:
        from pydantic import ConfigDict, ValidationError, validate_call

        checked = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(self._functions[name])
        try:
            return _as_text(self._calls.call(lambda: _result(checked(**arguments)), seconds))
        except ValidationError as error:
            wrong = "; ".join(
                f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()
            )
            raise ToolError(f"wrong arguments: {wrong}") from None
        except TimeoutError as error:
            raise ToolError(str(error)) from None
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # a tool may raise anything
            raise ToolError(f"{type(error).__name__}: {error}") from None

    def close(self) -> None:
        for tool in self._objects:
            if hasattr(tool, "close"):
                tool.close()

    def _found(self, entry: str | Mapping[str, Any]) -> list[Callable[..., Any]]:
        """Return the functions of an entry, after making its object."""
        options = {} if isinstance(entry, str) else {k: v for k, v in entry.items() if k != "name"}
        name = entry if isinstance(entry, str) else entry.get("name")
        where = f"environment.tools: {name}"
        tool = _named(name)
        if not isinstance(tool, type):
            if options:
                raise InputError(f"{where} is a function, which takes no options; got {sorted(options)}")
            return [tool]
        try:
            made = tool(**options)
        except InputError:
            raise
        except Exception as error:  # a user's constructor may raise anything
            raise InputError(f"{where}: its constructor raised {type(error).__name__}: {error}") from error
        self._objects.append(made)
        methods = [
            getattr(made, method)
            for method, member in vars(tool).items()
            if inspect.isfunction(member) and not method.startswith("_") and method not in OF_AN_EPISODE
        ]
        if not methods:
            raise InputError(f"{where} has no public method; expected at least one as a tool")
        return methods


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a function's JSON schema, which transformers makes from type hints and a Google-style docstring.

    Example: `def add(a: int, b: int) -> int` with an `Args:` section for `a` and `b` has the schema
    `{"type": "function", "function": {"name": "add", "description": …, "parameters": {…}, "return": …}}`.

    Raises:
        InputError: the function lacks a docstring, a type hint, or the description of an argument.
    """
    from transformers.utils import get_json_schema

    name = getattr(function, "__name__", type(function).__name__)
    try:
        schema: dict[str, Any] = get_json_schema(function)
    except Exception as error:  # the library's classes raise their own errors
        raise InputError(
            f"environment.tools: {name} has no schema ({error}); expected type hints for all arguments, and "
            f"a docstring with a line for each: 'Args:', then '    NAME: what it is'"
        ) from None
    return schema


def _named(name: Any) -> Callable[..., Any]:
    module, colon, attribute = str(TOOLS.get(name, name)).partition(":")
    if not colon:
        raise InputError(
            f"environment.tools: got {name!r}; expected package.module:function, FILE.py:function, or a "
            f"built-in tool{did_you_mean(str(name), TOOLS)}"
        )
    tool = getattr(import_module(module, "environment.tools"), attribute, None)
    if not callable(tool):
        raise InputError(f"environment.tools: {module} has no function or class {attribute!r}")
    return tool  # type: ignore[no-any-return]


def _result(value: Any) -> Any:
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def _as_text(value: Any) -> str:
    """
    >>> _as_text("so"), _as_text(4.5), _as_text({"a": (1, None)})
    ('so', '4.5', '{"a": [1, null]}')
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
