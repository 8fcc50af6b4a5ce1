"""Turn rewards that are Python objects into names for a configuration.

Servers compute rewards in other processes, so they find a function by name. Nothing is pickled. A function in
a module is found by the module's name. The source of a function in a script, a notebook or another function
is written into a file. Such a function must import or define inside of it what it uses.
"""

import ast
import builtins
import hashlib
import inspect
import re
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from whetstone.errors import InputError
from whetstone.own_place import NAMES

# With this import, annotations may use names that the file does not have.
HEADER = '''"""The source of a reward that was given as a Python function."""

from __future__ import annotations

'''
BUILT_IN = frozenset(dir(builtins))

# Function that writes a file with this name and text, and returns its path.
Place = Callable[[str, str], Path]


def configured(reward: Any, place: Place | None) -> Any:
    """Return the reward with each function and class replaced by its part in a configuration.

    Args:
        reward: a name, a function, a class, a mapping whose `name` is one of these, or a list of all these.
        place: writes a function's source; None puts the reward `length` there, to be replaced later.

    Raises:
        InputError: an object is no reward, or uses names that its server would not have.
    """
    if isinstance(reward, list | tuple):
        return [configured(each, place) for each in reward]
    if isinstance(reward, Mapping) and "name" in reward:
        part = configured(reward["name"], place)
        named = part if isinstance(part, Mapping) else {"name": part}
        return {**named, **{key: value for key, value in reward.items() if key != "name"}}
    if reward is None or isinstance(reward, str | Mapping):
        return reward
    return _part(reward, place)


def _part(reward: Any, place: Place | None) -> dict[str, str]:
    if isinstance(reward, type):
        if not _is_importable(reward):
            raise InputError(
                f"reward={reward.__name__}: expected a class from a module, such as my_rewards.py; a script "
                "or a notebook can give functions only"
            )
        return {"name": f"{reward.__module__}:{reward.__name__}"}
    if not isinstance(reward, FunctionType) or not reward.__name__.isidentifier():
        raise InputError(
            f"reward: got {reward!r}; expected a name, or a function: def my_reward(samples), or "
            "def my_reward(prompts, completions, **columns)"
        )
    name = reward.__name__
    label = name.strip("_") or "function"
    if _is_importable(reward):
        return {"name": "function", "label": label, "function": f"{reward.__module__}:{name}"}
    text = source(reward)
    if place is None:
        return {"name": "length", "label": label}
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return {"name": "function", "label": label, "function": f"{place(f'{name}_{digest}.py', text)}:{name}"}


def _is_importable(value: Any) -> bool:
    """Tell whether another process can import an object from its module, which must not be named as ours."""
    module = value.__module__
    if module == "__main__" or module.partition(".")[0] in NAMES:
        return False
    return getattr(sys.modules.get(module), value.__qualname__, None) is value


def source(function: FunctionType) -> str:
    """Return the source of a module with the function alone, and its attributes, such as `scores`.

    Raises:
        InputError: the source can't be read, or uses names that are defined outside of the function; or an
            attribute is no text, number, truth value or tuple of these.
    """
    name = function.__name__
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise InputError(
            f"reward={name}: its source can't be read; define it in a file, and import it from there"
        ) from None
    text = HEADER + text
    try:
        outside = sorted(set(_used(symtable.symtable(text, name, "exec"))) - BUILT_IN - {name})
    except SyntaxError:  # a lambda, or a function within an expression
        raise InputError(f"reward={name}: expected a function of its own: def {name}(samples)") from None
    if outside:
        raise InputError(
            f"reward={name} uses {', '.join(outside)} of {_where(function)}, which the reward's server does "
            f"not have: import or define it inside of {name}, or put {name} into a module of yours"
        )
    return text + _attributes(function)


def _attributes(function: FunctionType) -> str:
    """Return lines that set the function's attributes, which its source alone does not have."""
    lines = ""
    for key, value in vars(function).items():
        if key.startswith("__"):  # a decorator's own
            continue
        try:
            is_plain = ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError):
            is_plain = False
        if not is_plain:
            raise InputError(
                f"reward={function.__name__}: its attribute {key} is {value!r:.80}; expected a text, a "
                f"number or a tuple, or put {function.__name__} into a module of yours"
            )
        lines += f"\n{function.__name__}.{key} = {value!r}\n"
    return lines


def _used(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the names that a module, and all that it defines, look up in the module."""
    is_module = table.get_type() == "module"
    for symbol in table.get_symbols():
        is_defined = symbol.is_assigned() or symbol.is_imported()
        if symbol.is_referenced() and (not is_defined if is_module else symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _used(inner)


def _where(function: FunctionType) -> str:
    file = re.sub(r"<.*>|.*/ipykernel_.*", "", function.__code__.co_filename)
    return Path(file).name if file else "the notebook"
