"""Python objects that a run was given, such as a notebook's function, by names that all its processes know.

    caller ── hold ──▶ driver ──▶ Ray's store ── fetch ──▶ a worker, server or learner that looks a name up

A name is written as any component's address is: `object:brevity@1f3a5c7e9b2d`. After the @ is a digest of
the object, so a changed function has another name. The bytes are cloudpickle's, from the user's own process
to its own processes; they are read from no file.
"""

import linecache
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from contracts.errors import InputError
from contracts.processes.working_folder import search_last

MODULE = "object"  # stands in the place of an address's module
AT = "@"
ADDRESS = re.compile(rf"{MODULE}:\w+{AT}[0-9a-f]{{12}}")

Fetch = Callable[[str], bytes | None]


def _from_nowhere(name: str) -> bytes | None:
    return None


_fetch: Fetch = _from_nowhere
_values: dict[str, Any] = {}
_packed: dict[str, bytes] = {}


def is_object(address: str) -> bool:
    """Return whether an address is that of an object.

    >>> is_object("object:brevity@1f3a5c7e9b2d"), is_object("my_rewards:brevity")
    (True, False)
    """
    return address.startswith(f"{MODULE}:")


def own_name(address: str) -> str:
    """Return the name after an address's colon, without an object's digest; else the name itself.

    >>> own_name("object:brevity@1f3a5c7e9b2d"), own_name("my_rewards:brevity"), own_name("rouge")
    ('brevity', 'brevity', 'rouge')
    """
    name = address.rpartition(":")[2]
    return name.partition(AT)[0] if is_object(address) else name


@contextmanager
def held(packed: Mapping[str, bytes], values: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Hold objects by name for a time; `values` has those that need no unpacking."""
    before = dict(_values), dict(_packed)
    hold(packed, values or {})
    try:
        yield
    finally:
        for there, then in zip((_values, _packed), before, strict=True):
            there.clear()
            there.update(then)


def hold(packed: Mapping[str, bytes], values: Mapping[str, Any]) -> None:
    """Hold objects by name until this process ends."""
    for name in packed:
        _values.pop(name, None)
    _packed.update(packed)
    _values.update(values)


def packed_here() -> dict[str, bytes]:
    """Return the bytes of all objects of this process, by name."""
    return dict(_packed)


def packed_of(address: str) -> dict[str, bytes]:
    """Return the bytes of the object at an address, by its name; {} for any other or unknown address."""
    name = address.rpartition(":")[2]
    if not is_object(address):
        return {}
    blob = _bytes(name)
    return {} if blob is None else {name: blob}


def fetch_with(fetch: Fetch) -> None:
    """Fetch with this function the bytes of names that this process does not hold."""
    global _fetch
    _fetch = fetch


class Objects(ModuleType):
    """A stand-in for a module, with the objects as attributes.

    Args:
        where: the user's option, for messages: "reward=object:brevity@1f3a5c7e9b2d".
    """

    def __init__(self, where: str) -> None:
        super().__init__(MODULE)
        self._where = where

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _values:
            _values[name] = self._loaded(name)
        return _values[name]

    def _loaded(self, name: str) -> Any:
        short = name.partition(AT)[0]
        blob = _bytes(name)
        if blob is None:
            raise InputError(
                f"{self._where}: {short} was a function or class of a script or notebook, which no command "
                f"can find again. Go on in Python, with {short} in the same call of whetstone.train or "
                f"whetstone.evaluate. Or put {short} into a file and give its address: FILE.py:{short}"
            )
        search_last()  # an object may name modules of the user's folders
        try:
            sources, value = pickle.loads(blob)
        except Exception as error:  # errors of the object's modules at their import
            raise InputError(
                f"{self._where}: {short} can't be made in another process: {type(error).__name__}: {error}"
            ) from error
        for file, text in sources.items():  # so that tracebacks show a notebook's lines
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        return value


def resolved(value: Any, where: str) -> Any:
    """Return a component's options with objects in place of their addresses.

    Raises:
        InputError: the object does not exist or can't be made here; the message begins with `where`.
    """
    if isinstance(value, str) and ADDRESS.fullmatch(value):
        return getattr(Objects(where), value.partition(":")[2])
    if isinstance(value, Mapping):
        return {key: resolved(option, where) for key, option in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(resolved(element, where) for element in value)
    return value


def _bytes(name: str) -> bytes | None:
    if name not in _packed and (blob := _fetch(name)) is not None:
        _packed[name] = blob
    return _packed.get(name)
