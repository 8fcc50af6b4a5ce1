"""Turn Python objects among a call's arguments into addresses for a configuration, and keep the objects.

a function or class of a module    package.module:name         the command line finds it, too
any other object                   object:name@digest          goes to the run's processes as bytes
settings, such as PPO(kl=…)        {name: …, option: …}
rows                               a file's place              becomes a file in the run's folder
"""

import functools
import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

from whetstone.errors import InputError
from whetstone.identity import digest_of
from whetstone.importable import is_importable
from whetstone.own_place import NAMES
from whetstone.rows import Rows, rows_in
from whetstone.travel import code_of, packed

# The tables of built-in components, by key.
TABLES = {
    "algorithm": "learner.algorithms:ALGORITHMS",
    "task": "services.data.tasks:TASKS",
    "environment": "rollout_workers.environments:ENVIRONMENTS",
    "reward": "reward_servers.graders:REWARDS",
    "graders": "reward_servers.graders:REWARDS",
    "metrics": "reward_servers.graders:METRICS",
}
GRADERS = ("reward", "metrics", "graders")  # `graders` belongs to `whetstone.score`
METHODS = {
    "reward": ("score",),
    "metrics": ("compute",),
    "graders": ("score", "compute"),
    "task": ("prompts",),
    "environment": ("step",),
}
FACTORY = "rollout_workers.environments.factory:Factory"
ENVIRONMENT_BASE = "rollout_workers.environments.base"


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects behind the addresses of a call.

    Example: `Objects({"brevity@1f3a5c7e9b2d": b"…"}, {"brevity@1f3a5c7e9b2d": brevity})`
    """

    packed: dict[str, bytes] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # sources for readers of the run's folder
    rows: dict[str, Rows] = field(default_factory=dict)  # rows by their stand-in places

    def add_earlier(self, text: str) -> None:
        """Add objects of this process's earlier calls whose names are in a text, such as a config.yaml."""
        for name in [name for name in _earlier if f"object:{name}" in text]:
            self.packed.setdefault(name, _earlier[name])

    def for_others(self) -> "Objects":
        """Return the objects in a form for another process."""
        return replace(self, values={})


_earlier: dict[str, bytes] = {}  # the newest of this process
MOST_EARLIER = 32


def configured(overrides: Mapping[str, Any], objects: Objects) -> dict[str, Any]:
    """Return the overrides with an address for each object; `objects` gets the objects.

    Raises:
        InputError: a key does not accept its object, or the object can't travel to another process.
    """
    return {key: _of_key(key.replace("__", "."), value, objects) for key, value in overrides.items()}


def _of_key(key: str, value: Any, objects: Objects) -> Any:
    if key in GRADERS:
        return _graders(key, value, objects)
    if key in ("task", "data") and (rows := rows_in(key, value, objects.rows)) is not None:
        return rows
    if key in TABLES:
        return _component(key, value, objects)
    return _plain(key, value, objects)


def _graders(key: str, value: Any, objects: Objects) -> Any:
    """Return the names and mappings of rewards or metrics; `{f: 0.5}` gives f the weight 0.5."""
    if isinstance(value, Mapping) and any(not isinstance(name, str) for name in value):
        value = [{"name": grader, "weight": weight} for grader, weight in value.items()]
    if not isinstance(value, list | tuple):
        return _component(key, value, objects)
    return _labelled([_component(key, grader, objects) for grader in value])


def _labelled(parts: list[Any]) -> list[Any]:
    """Return the parts, with labels for all but the first of several objects of one name, such as lambdas."""
    with_labels: list[Any] = []
    seen: dict[str, list[str]] = {}
    for part in parts:
        name = part if isinstance(part, str) else str(part["name"])
        addresses = seen.setdefault(own_name(name), [])
        if name.startswith("object:") and addresses and name not in addresses:
            label = {"name": name, "label": f"{own_name(name)}{len(addresses) + 1}"}
            part = {**label, **({} if isinstance(part, str) else part)}
        addresses.append(name)
        with_labels.append(part)
    return with_labels


def own_name(address: str) -> str:
    """Return the name after an address's colon, without an object's digest, for labels.

    >>> own_name("object:brevity@1f3a5c7e9b2d"), own_name("rouge")
    ('brevity', 'rouge')
    """
    return address.rpartition(":")[2].partition("@")[0]


def _component(key: str, value: Any, objects: Objects) -> Any:
    """Return a component's name, or a mapping of its name and options."""
    if isinstance(value, Mapping) and "name" in value:
        part = _component(key, value["name"], objects)
        named = part if isinstance(part, Mapping) else {"name": part}
        rest = {name: option for name, option in value.items() if name != "name"}
        is_own = ":" in str(named["name"])  # a user's class or function, which takes no addresses
        plain = {name: _plain(f"{key}.{name}", option, objects, is_own) for name, option in rest.items()}
        return {**named, **plain}
    if value is None or isinstance(value, str | Mapping | list | tuple):
        return _plain(key, value, objects)
    if _are_settings(value):
        options = {name: getattr(value, name) for name in sorted(value.model_fields_set)}
        return {"name": _name_of(key, type(value), objects), **_plain(key, _dumped(options), objects)}
    methods = METHODS.get(key, ())
    if not callable(value) and not any(callable(getattr(value, method, None)) for method in methods):
        raise InputError(f"{key}: got {value!r:.200}; expected {_expected(key)}")
    if key == "environment" and not _makes_environments(value):
        return _of_environment(value, objects)
    return _name_of(key, value, objects)


def _expected(key: str) -> str:
    if key == "reward":
        return (
            "a name, or what Python can call: def my_reward(samples), or def my_reward(prompts, completions, "
            "**columns)"
        )
    if key == "task":
        return (
            "a name, a class, or rows: a list, a DataFrame, a Dataset, or a dict with one of these per split"
        )
    if key not in METHODS:
        return f"a name, a class ({key}=Mine, not {key}=Mine()), or an object of settings, such as PPO()"
    function = "a function, " if key in GRADERS else ""
    return f"a name, {function}a class, or an object with a method {' or '.join(METHODS[key])}"


def _of_environment(value: Any, objects: Objects) -> dict[str, str]:
    """Return an environment that makes another one by its class or a function."""
    bases = [f"{base.__module__}.{base.__name__}" for base in getattr(value, "__mro__", ())]
    if "gymnasium.core.Env" in bases:
        return {"name": "gymnasium_text", "class_path": _address("environment", value, objects)}
    return {"name": FACTORY, "factory": _address("environment", value, objects)}


def _makes_environments(value: Any) -> bool:
    bases = getattr(value, "__mro__", ())
    return any(base.__module__ == ENVIRONMENT_BASE for base in bases)


def _plain(key: str, value: Any, objects: Objects, as_objects: bool = False) -> Any:
    """Return a value with an address in place of each function and class in it.

    Args:
        as_objects: give functions and classes of modules an object's address, too.
    """
    if value is None or isinstance(value, str | int | float | os.PathLike):
        return value
    if isinstance(value, Mapping) and rows_in(key, value, None) is None:
        return {name: _plain(f"{key}.{name}", option, objects, as_objects) for name, option in value.items()}
    if (rows := rows_in(key, value, objects.rows)) is not None:
        return rows
    if isinstance(value, list | tuple):
        return [_plain(key, element, objects, as_objects) for element in value]
    if _are_settings(value):
        options = {name: getattr(value, name) for name in value.model_fields_set}
        return _plain(key, _dumped(options), objects, as_objects)
    return _address(key, value, objects, as_objects) if callable(value) else value


def _are_settings(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "model_fields_set") and hasattr(value, "model_dump")


def _dumped(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.model_dump(exclude_unset=True) if _are_settings(value) else value
        for name, value in options.items()
    }


def _name_of(key: str, value: Any, objects: Objects) -> str:
    """Return the name of a built-in component, or an address."""
    address = _address(key, value, objects)
    if key in TABLES and address.partition(".")[0] in NAMES:
        module, _, table = TABLES[key].partition(":")
        built_in: Mapping[str, str] = getattr(importlib.import_module(module), table)
        return next((name for name, place in built_in.items() if place == address), address)
    return address


def _address(key: str, value: Any, objects: Objects, as_object: bool = False) -> str:
    """Return an address for an object, and keep the object unless every process can import it."""
    is_of_module = isinstance(value, type | FunctionType) and is_importable(value)
    if is_of_module and not as_object and value.__qualname__.isidentifier():
        return f"{value.__module__}:{value.__qualname__}"
    short = _short_name(value)
    name = f"{short}@{_digest(key, short, value)}"
    if name not in objects.packed:
        kind = key if key in TABLES else f"{key}="
        objects.packed[name] = packed(value, f"{kind.removesuffix('s')} `{short}`")
        objects.values[name] = value
        if source := _source(value):
            objects.sources[name] = source
        _remember(name, objects.packed[name])
    return f"object:{name}"


def _remember(name: str, blob: bytes) -> None:
    _earlier.pop(name, None)
    _earlier[name] = blob
    if len(_earlier) > MOST_EARLIER:
        del _earlier[next(iter(_earlier))]


def _digest(key: str, short: str, value: Any) -> str:
    try:
        return digest_of(value)
    except RecursionError:
        raise InputError(
            f"{key}: `{short}` holds objects in one another, hundreds deep; expected fewer: a flat list, or "
            "what makes them inside the function"
        ) from None


def _short_name(value: Any) -> str:
    """Return a name that can be part of metrics' keys."""
    while isinstance(value, functools.partial):
        value = value.func
    name = str(getattr(value, "__name__", type(value).__name__))
    return re.sub(r"\W", "", name).strip("_") or "function"


def _source(value: Any) -> str:
    """Return the source of an object, or "" if it can't be read."""
    import inspect
    import textwrap

    code = code_of(value)
    for candidate in (value, type(value) if not isinstance(value, FunctionType) else None, code):
        try:
            return textwrap.dedent(inspect.getsource(candidate))  # type: ignore[arg-type]
        except (OSError, TypeError):
            continue
    return ""
