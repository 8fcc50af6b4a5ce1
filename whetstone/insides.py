"""The objects that an object takes along to another process, with the words for their places."""

import dis
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Set
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from whetstone.importable import is_importable

GLOBAL = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"})


def insides(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each object directly inside, after words such as "the global `log`".

    Nothing is inside of what the other process imports: a module, or a function or class of one.
    """
    if isinstance(value, ModuleType) or (isinstance(value, FunctionType | type) and is_importable(value)):
        return iter(())
    parts_of = next((parts for kinds, parts in PARTS if isinstance(value, kinds)), _of_instance)
    return parts_of(value)


def globals_of(code: CodeType) -> list[str]:
    """Return the names that a function, and all that it defines, look up in its module."""
    found = [each.argval for each in dis.get_instructions(code) if each.opname in GLOBAL]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += globals_of(constant)
    return list(dict.fromkeys(found))


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name in globals_of(function.__code__):
        if name in function.__globals__:
            yield f"the global `{name}`", function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"`{name}` of the function around it", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name, parameter in inspect.signature(function, follow_wrapped=False).parameters.items():
        if parameter.default is not parameter.empty:
            yield f"the default of `{name}`", parameter.default
    for name, each in vars(function).items():
        yield f"its attribute `{name}`", each


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    for name, each in vars(kind).items():
        if not name.startswith(("__", "_abc")) or isinstance(each, FunctionType):
            yield f"its attribute `{name}`", each
    for name, settings in getattr(kind, "model_fields", {}).items():  # of pydantic
        yield f"the default of `{name}`", settings.default
    for base in kind.__bases__:
        yield f"its base {base.__name__}", base


def _of_instance(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if not is_importable(kind):
        yield f"its class {kind.__name__}", kind
    for name, each in getattr(value, "__dict__", {}).items():
        yield f"its attribute `{name}`", each


def _of_partial(value: Any) -> Iterator[tuple[str, Any]]:
    yield "its function", value.func
    yield from ((f"its argument {number}", each) for number, each in enumerate(value.args, start=1))
    yield from ((f"its argument `{name}`", each) for name, each in value.keywords.items())


def _of_mapping(value: Any) -> Iterator[tuple[str, Any]]:
    yield from ((f"its entry {key!r:.40}", each) for key, each in value.items())


def _of_entries(value: Any) -> Iterator[tuple[str, Any]]:
    yield from ((f"its entry {number}", each) for number, each in enumerate(value))


def _named(*names: str) -> Callable[[Any], Iterator[tuple[str, Any]]]:
    def parts(value: Any) -> Iterator[tuple[str, Any]]:
        found = ((name.strip("_"), getattr(value, name)) for name in names)
        yield from ((f"its {words}", each) for words, each in found if each is not None)

    return parts


PARTS: tuple[tuple[Any, Callable[[Any], Iterator[tuple[str, Any]]]], ...] = (
    (FunctionType, _of_function),
    (type, _of_class),
    (MethodType, _named("__self__", "__func__")),
    (functools.partial, _of_partial),
    (Mapping, _of_mapping),
    ((list, tuple, Set), _of_entries),
    ((staticmethod, classmethod), _named("__func__")),
    (property, _named("fget", "fset")),
)
