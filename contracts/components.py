"""Finding a component by its name: a built-in from an explicit table, or a user's `package.module:Class`."""

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from contracts.errors import InputError, did_you_mean
from contracts.secret_values import remember_in
from contracts.settings import Settings, build
from contracts.signatures import check_methods
from contracts.working_folder import hidden, search_last


def find(kind: str, name: str, built_in: Mapping[str, str]) -> type:
    """The class called `name`.

    Args:
        kind: what is looked for, for messages: "reward", "task", "algorithm"…
        name: a key of `built_in`, or `package.module:Class` of the user's own.
        built_in: name to `package.module:Class`, so that nothing is imported before it is needed.

    Raises:
        InputError: the name is unknown (with the nearest right one), or does not import.
    """
    address = built_in.get(name, name)
    if ":" not in address:
        raise InputError(
            f"{kind}={name}: no such {kind}{did_you_mean(name, built_in)}"
            f"\nA class of your own is written package.module:Class."
        )
    module_name, _, class_name = address.partition(":")
    module = import_module(module_name, where=f"{kind}={name}")
    found = getattr(module, class_name, None)
    if found is not None and not isinstance(found, type):
        what = "a function" if callable(found) else "an object"
        raise InputError(f"{kind}={name}: got {what} ({type(found).__name__}); expected a class")
    if found is None:
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        why = hidden(module_name)
        meant = f". {why}" if why else did_you_mean(class_name, classes)
        raise InputError(f"{kind}={name}: {module_name} has no class {class_name}{meant}")
    return found


def import_module(module_name: str, where: str) -> ModuleType:
    """A built-in module, or one of the user's own, which usually lies in the working folder.

    Raises:
        InputError: it does not import; begins with `where`.
    """
    search_last()
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported
        why = hidden(module_name)
        raise InputError(
            f"{where}: importing {module_name} failed: {type(error).__name__}: {error}"
            + (f". {why}" if why else "")
        ) from error


def create(
    kind: str,
    name: str,
    options: Mapping[str, Any],
    built_in: Mapping[str, str],
    protocol: type,
    optional: Sequence[type] = (),
    *,
    known: Sequence[str] = (),
) -> Any:
    """The component called `name`, made with `options`, whose methods can be called as the Protocol's are.

    Args:
        optional: Protocols of what such a component may have besides.
        known: options that somebody else reads; named where one is misspelt.

    Raises:
        InputError: unknown name, unknown or wrong option, a class that lacks a method of the Protocol, or one
            whose method takes other arguments.
    """
    remember_in(options)
    found = find(kind, name, built_in)
    check_component(kind, name, found, protocol, optional)
    if issubclass(found, Settings):
        return build(found, options, where=kind, known=known)
    try:
        return found(**options)
    except (Exception, SystemExit) as error:  # a user's constructor may raise anything
        raise InputError(
            f"{kind}={name}: {found.__name__}({', '.join(f'{k}={v!r}' for k, v in options.items())}) "
            f"raised {type(error).__name__}: {error}"
        ) from error


def check_component(kind: str, name: str, found: type, protocol: type, optional: Sequence[type] = ()) -> None:
    """Refuse a class whose methods can't be called as the Protocol's are; it need not be made for that.

    Raises:
        InputError: a method is missing, or takes other arguments.
    """
    where, noun = f"{kind}={name}", kind.rpartition(".")[2]
    check_methods(where, noun, found, protocol)
    for more in optional:
        check_methods(where, noun, found, more, optional=True)
