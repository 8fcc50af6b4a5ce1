"""Objects that travel inside another object to another process, with words for their places."""

import copyreg
import dis
import functools
import inspect
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Set
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from whetstone.importable import is_importable

PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis))
CACHED = functools._lru_cache_wrapper
IN_MEMORY = (io.StringIO, io.BytesIO)
PROTOCOL = 4
SHORT = 40  # characters of a key in a message
GLOBAL = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"})


def insides(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each object directly inside, after words such as "the global `log`".

    Objects that the other process imports have no insides: modules, and their functions and classes.
    """
    if type(value) in PLAIN or isinstance(value, ModuleType):
        return iter(())
    if isinstance(value, FunctionType | type):
        if is_importable(value):
            return iter(())
        return _of_class(value) if isinstance(value, type) else _of_function(value)
    return PARTS.get(type(value), _of_instance)(value)


def reduced_our_way(value: Any) -> Any:
    """Return pickle's parts of an object that cloudpickle gets wrong; for others NotImplemented.

    Raises:
        TypeError: the value is an open file, which cloudpickle would read.
    """
    for stream in ("stdout", "stderr"):
        if value is getattr(sys, stream):
            return getattr, (sys, stream)
    if isinstance(value, CACHED) and not is_importable(value):  # pickled by a name of this process
        return cached_again, (value.__wrapped__, value.cache_parameters())
    if isinstance(value, functools.cached_property):  # on Python 3.11 it holds a lock
        state = {name: attribute for name, attribute in vars(value).items() if name != "lock"}
        return type(value), (value.func,), state
    if isinstance(value, io.IOBase) and not isinstance(value, IN_MEMORY):
        raise TypeError(f"cannot pickle {type(value).__name__}")
    return NotImplemented


def cached_again(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    """Return a function with a cache, as `functools.lru_cache` makes it."""
    return functools.lru_cache(**parameters)(function)


def globals_of(code: CodeType) -> list[str]:
    """Return the names that a function, and all functions in it, look up in the module."""
    names = [instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in GLOBAL]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += globals_of(constant)
    return list(dict.fromkeys(names))


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
    for name, attribute in vars(function).items():
        yield f"its attribute `{name}`", attribute


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    for name, attribute in vars(kind).items():
        if not (name.startswith("__") or name == "_abc_impl") or isinstance(attribute, FUNCTIONS):
            yield f"its attribute `{name}`", attribute
    for name, settings in getattr(kind, "model_fields", {}).items():  # fields of pydantic
        yield f"the default of `{name}`", settings.default
    for base in kind.__bases__:
        yield f"its base {base.__name__}", base
    if not is_importable(type(kind)):
        yield f"its class {type(kind).__name__}", type(kind)


def _of_instance(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the contents of the instance's pickle."""
    kind = type(value)
    if kind.__module__ != "builtins" and not is_importable(kind):
        yield f"its class {kind.__name__}", kind
    if isinstance(value, Set):  # a set's pickle has another order in each process
        yield "its entries", frozenset(value)
        yield from _of_state(getattr(value, "__dict__", None))
    elif "torch" in sys.modules and _is_tensor(value):  # a tensor's pickle holds a pointer
        yield from _of_tensor(value)
    else:
        try:
            reduced = _reduced(value)
        except Exception:  # each kind of object refuses in its own way
            reduced = (kind, (), getattr(value, "__dict__", None))
        yield from _of_reduced(value, reduced)


def _reduced(value: Any) -> Any:
    import cloudpickle

    ours = reduced_our_way(value)
    if ours is not NotImplemented:
        return ours
    reduce = cloudpickle.Pickler.dispatch_table.get(type(value))
    return value.__reduce_ex__(PROTOCOL) if reduce is None else reduce(value)


def _of_reduced(value: Any, reduced: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(reduced, str):
        yield "its name", f"{getattr(value, '__module__', '')}:{reduced}"
        return
    parts: list[Any] = [*reduced, None, None, None]
    make, arguments, state, entries, items = parts[:5]
    if make not in (type(value), copyreg.__newobj__):  # type: ignore[attr-defined]
        yield "what makes it", make
    for number, argument in enumerate(arguments):
        if argument is not type(value):
            yield f"its part {number}", argument
    yield from _of_state(state)
    yield from _of_entries(entries or ())
    yield from _of_items(items or ())


def _of_state(state: Any) -> Iterator[tuple[str, Any]]:
    """Yield attributes; a pair of dicts holds those in __dict__ and those in __slots__."""
    if isinstance(state, tuple) and len(state) == 2 and all(isinstance(half, dict | None) for half in state):
        for half in state:
            yield from _of_state(half)
    elif isinstance(state, dict):
        yield from ((f"its attribute `{name}`", attribute) for name, attribute in state.items())
    elif state is not None:
        yield "its state", state


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _of_tensor(value: Any) -> Iterator[tuple[str, Any]]:
    import torch

    dense = value.detach().to_dense().cpu().contiguous().reshape(-1)
    yield "its kind", f"{value.dtype} {tuple(value.shape)}"
    yield "its values", dense.view(torch.uint8).numpy().tobytes()


def _of_partial(value: Any) -> Iterator[tuple[str, Any]]:
    yield "its function", value.func
    yield from ((f"its argument {number}", argument) for number, argument in enumerate(value.args, start=1))
    yield from ((f"its argument `{name}`", argument) for name, argument in value.keywords.items())


def _of_mapping(value: Any) -> Iterator[tuple[str, Any]]:
    return _of_items(value.items())


def _of_items(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    for number, (key, element) in enumerate(items):
        if isinstance(key, str) and len(key) < SHORT:
            yield f"its entry {key!r}", element
        else:
            yield f"its key {number}", key
            yield f"its entry {number}", element


def _of_entries(value: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    yield from ((f"its entry {number}", element) for number, element in enumerate(value))


def _named(*names: str) -> Callable[[Any], Iterator[tuple[str, Any]]]:
    def parts(value: Any) -> Iterator[tuple[str, Any]]:
        by_name = ((name.strip("_"), getattr(value, name)) for name in names)
        yield from ((f"its {words}", part) for words, part in by_name if part is not None)

    return parts


# Subclasses don't count, because they have code and attributes of their own.
PARTS: dict[type, Callable[[Any], Iterator[tuple[str, Any]]]] = {
    MethodType: _named("__self__", "__func__"),
    functools.partial: _of_partial,
    **dict.fromkeys((dict, MappingProxyType), _of_mapping),
    **dict.fromkeys((list, tuple, set, frozenset), _of_entries),
    **dict.fromkeys((staticmethod, classmethod), _named("__func__")),
    property: _named("fget", "fset", "fdel"),
}
FUNCTIONS = (FunctionType, staticmethod, classmethod, functools.partialmethod)
