"""Find a component by its name: a built-in one, or a user's `package.module:Class` or `FILE.py:Class`."""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from contracts import objects
from contracts.errors import InputError, did_you_mean
from contracts.processes.python_files import is_file, module_name, straight
from contracts.processes.working_folder import hidden, search_last, working_folder
from contracts.secrets.secret_values import remember_in
from contracts.settings import Settings, build
from contracts.signatures import check_methods


def find(kind: str, name: str, built_in: Mapping[str, str]) -> type:
    """Return the class called `name`.

    Args:
        kind: the kind of component, for messages: "reward", "task", "algorithm"…
        name: a key of `built_in`, or a user's `package.module:Class` or `FILE.py:Class`.
        built_in: name to `package.module:Class`, so that nothing is imported too early.

    Raises:
        InputError: the name is unknown (names the nearest known one), or its module does not import.
    """
    address = built_in.get(name, name)
    if ":" not in address:
        raise InputError(
            f"{kind}={name}: no such {kind}{did_you_mean(name, built_in)}"
            f"\nA class of your own is written package.module:Class, or FILE.py:Class."
        )
    place, _, class_name = address.partition(":")
    module = import_module(place, where=f"{kind}={name}")
    component = getattr(module, class_name, None)
    if objects.is_object(address) and not isinstance(component, type) and not callable(component):
        return class_of(component)
    if component is not None and not isinstance(component, type):
        what = "a function" if callable(component) else "an object"
        raise InputError(f"{kind}={name}: got {what} ({type(component).__name__}); expected a class")
    if component is None:
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        why = hidden(place)
        meant = f". {why}" if why else did_you_mean(class_name, classes)
        raise InputError(f"{kind}={name}: {place} has no class {class_name}{meant}")
    return component


def class_of(instance: Any) -> type:
    """Return a class whose only instance is this object, so that the object can replace a class.

    Its attributes are the object's, read at their use: a property may raise, or load a model.
    """

    class OfInstance(type):
        def __getattr__(cls, name: str) -> Any:
            if name.startswith("_") or name not in dir(instance):
                raise AttributeError(f"{cls.__name__} has no {name}")
            return getattr(instance, name)

    members = {"__new__": lambda cls: instance, "__signature__": inspect.Signature()}
    return OfInstance(type(instance).__name__, (), members)


def import_module(place: str, where: str) -> ModuleType:
    """Import a built-in module, or a user's module or file, usually in the working folder.

    For `object` return a module with the run's Python objects as attributes.

    Args:
        place: `package.module`, or `FILE.py` with a path from the working folder.

    Raises:
        InputError: the module does not exist or does not import; the message begins with `where`.
    """
    if place == objects.MODULE:
        return objects.Objects(where)
    search_last()
    name, shown = place, place
    if is_file(place):
        path = Path(working_folder() or "", place).absolute()
        if not path.is_file():
            raise InputError(f"{where}: there is no file {path}; give its place: FILE.py:NAME")
        path = straight(path)
        name, shown = module_name(path), str(path)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything at its import
        why = hidden(name)
        raise InputError(
            f"{where}: importing {shown} failed: {type(error).__name__}: {error}"
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
    """Make the component called `name` with `options`; its methods must take the Protocol's arguments.

    Args:
        optional: more Protocols whose methods the component may have.
        known: options that other code reads; the error for a misspelt option suggests them.

    Raises:
        InputError: the name or an option is unknown, an option is wrong, or a method of the Protocol is
            missing or takes other arguments.
    """
    cls = find(kind, name, built_in)
    check_component(kind, name, cls, protocol, optional)
    return make(kind, name, cls, options, known=known)


def make(kind: str, name: str, cls: type, options: Mapping[str, Any], *, known: Sequence[str] = ()) -> Any:
    """Make the component of this class with `options`.

    Raises:
        InputError: an option is unknown or wrong, or a user's constructor raised.
    """
    remember_in(options)
    if issubclass(cls, Settings):
        return build(cls, options, where=kind, known=known)
    made_of = objects.resolved(options, f"{kind}={name}")
    try:
        return cls(**made_of)
    except (Exception, SystemExit) as error:  # a user's constructor may raise anything
        raise InputError(
            f"{kind}={name}: {cls.__name__}({', '.join(f'{k}={v!r}' for k, v in options.items())}) "
            f"raised {type(error).__name__}: {error}"
        ) from error


def check_component(kind: str, name: str, cls: type, protocol: type, optional: Sequence[type] = ()) -> None:
    """Refuse a class whose methods don't take the Protocol's arguments, without an instance.

    Raises:
        InputError: a method is missing, or takes other arguments.
    """
    where, noun = f"{kind}={name}", kind.rpartition(".")[2]
    check_methods(where, noun, cls, protocol)
    for more in optional:
        check_methods(where, noun, cls, more, optional=True)
