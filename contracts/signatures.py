"""Check early whether methods of a user's class take the arguments that its Protocol gives."""

import inspect
from collections.abc import Awaitable, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

from contracts.errors import InputError


def methods_of(protocol: type) -> tuple[str, ...]:
    """Return the names of a Protocol's public methods; properties are left out.

    >>> from contracts.scores import Reward
    >>> methods_of(Reward)
    ('score',)
    """
    members = vars(protocol).items()
    return tuple(name for name, member in members if inspect.isfunction(member) and not name.startswith("_"))


def check_methods(where: str, noun: str, component: Any, protocol: type, *, optional: bool = False) -> None:
    """Refuse a class or an object that lacks a method of the Protocol, or whose method takes other arguments.

    A method may lack arguments for which the Protocol has a default.

    Args:
        where: the user's option, for messages: "reward=my_rewards:Brevity".
        noun: the kind of component, for messages: "reward".
        optional: the class may lack methods; the others are checked.

    Raises:
        InputError: the message names the method, the arguments of its calls, and its signature.
    """
    name = component.__name__ if isinstance(component, type) else type(component).__name__
    missing = [method for method in methods_of(protocol) if not callable(getattr(component, method, None))]
    if missing and not optional:
        lacking = ", ".join(f"{method}({', '.join(_asked(getattr(protocol, method)))})" for method in missing)
        raise InputError(f"{where}: {name} is no {noun}: it lacks {lacking}")
    for method in methods_of(protocol):
        if method not in missing:
            _check_method(where, f"{name}.{method}", component, getattr(protocol, method))


def check_function(
    where: str, function: Any, parameters: Sequence[str], *, may_be_coroutine: bool = False
) -> None:
    """Refuse a function that does not take one argument for each name.

    Raises:
        InputError: the message names the arguments of the calls, and the signature.
    """
    shown = getattr(function, "__name__", type(function).__name__)
    _refuse_asynchronous(where, shown, function, may_be_coroutine=may_be_coroutine)
    signature = _signature(function)
    try:
        if signature is not None:
            signature.bind(*parameters)
    except TypeError as error:
        expected = f"{shown}({', '.join(parameters)})"
        raise InputError(f"{where}: got {shown}{signature}; expected {expected}: {error}") from None


def _check_method(where: str, shown: str, component: Any, model: Any) -> None:
    method = getattr(component, model.__name__)
    _refuse_asynchronous(where, shown, method, may_be_coroutine=_may_return(model, Awaitable))
    if inspect.isgeneratorfunction(method) and not _may_return(model, Sequence):
        raise InputError(f"{where}: {shown}() yields; expected a method that returns its result")
    if not _has_signature(component, model.__name__) or (signature := _signature(method)) is None:
        return
    parameters = _asked(model)
    positional = [
        name for name, parameter in parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    named = {name: None for name in parameters if name not in positional}
    try:
        signature.bind(*([None] if _takes_self(component, model.__name__) else []), *positional, **named)
    except TypeError as error:
        expected = ", ".join(["self", *parameters])
        raise InputError(
            f"{where}: got {shown}{_without_types(signature)}; expected {model.__name__}({expected}): {error}"
        ) from None


def _asked(model: Any) -> dict[str, inspect.Parameter]:
    """Return the arguments without a default of a Protocol's method, except self."""
    parameters = list(inspect.signature(model).parameters.items())[1:]
    return {name: parameter for name, parameter in parameters if parameter.default is parameter.empty}


def _refuse_asynchronous(where: str, shown: str, function: Any, *, may_be_coroutine: bool) -> None:
    if inspect.isasyncgenfunction(function) and may_be_coroutine:
        raise InputError(f"{where}: {shown}() yields (async def); expected one that returns its result")
    if inspect.isasyncgenfunction(function) or (
        inspect.iscoroutinefunction(function) and not may_be_coroutine
    ):
        raise InputError(f"{where}: {shown}() is asynchronous (async def); expected a plain def")


def _has_signature(component: Any, name: str) -> bool:
    """Return whether we know if the method takes `self`, because it is a plain, static or class method."""
    held = inspect.getattr_static(component, name, None)
    return inspect.isfunction(held) or isinstance(held, staticmethod | classmethod)


def _takes_self(component: Any, name: str) -> bool:
    """Return whether the signature of `component.name` begins with `self`."""
    return isinstance(component, type) and inspect.isfunction(inspect.getattr_static(component, name, None))


def _signature(function: Any) -> inspect.Signature | None:
    """Return the signature, or None if it is unknown, as for some functions written in C."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _without_types(signature: inspect.Signature) -> str:
    """Return the signature as text, without types.

    >>> def score(self, samples: list[str], k: int = 3) -> float: ...
    >>> _without_types(inspect.signature(score))
    '(self, samples, k=3)'
    """
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _may_return(model: Any, wanted: type) -> bool:
    """Return whether the Protocol's method may return this kind of value; a text is not a sequence here.

    A user's generator may replace a sequence, and a coroutine an awaitable.
    """
    returned = inspect.signature(model).return_annotation
    options = get_args(returned) if get_origin(returned) in (Union, UnionType) else (returned,)
    kinds = [get_origin(option) or option for option in options]
    return any(isinstance(kind, type) and kind is not str and issubclass(kind, wanted) for kind in kinds)
