"""Pack an object for a run's other processes, or name the part that can't travel.

Objects that the other processes can import travel by address. All others travel by value: functions and
classes of a notebook or a script, with their globals.
"""

import io
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, CoroutineType, FunctionType, GeneratorType, ModuleType
from typing import Any

from whetstone.errors import InputError
from whetstone.importable import modules_here_alone
from whetstone.insides import insides, reduced_our_way

MOST_MIB = 256
KINDS = ((GeneratorType, "a generator"), (CoroutineType, "a coroutine that was called already"))
BY_TYPE = {"_thread.lock": "a lock", "_thread.RLock": "a lock", "socket.socket": "a socket"}


def packed(value: Any, where: str) -> bytes:
    """Return the object as bytes, with the source of its notebook cells.

    Args:
        where: the user's option and the object's name, for messages: "reward `brevity`".

    Raises:
        InputError: a part of it can't travel, or it is too large.
    """
    with by_value(modules_here_alone()):
        try:
            blob = _dumped((sources_of(value), value))
        except Exception as error:  # each kind of object refuses in its own way
            raise InputError(f"{where} {_why(value, error)}") from error
    if len(blob) > MOST_MIB << 20:
        raise InputError(
            f"{where} has {len(blob) >> 20} MiB of data to send ({_largest(value)}); expected at most "
            f"{MOST_MIB}. Load it inside the function, or in the __init__ of a class"
        )
    return blob


@contextmanager
def by_value(modules: list[ModuleType]) -> Iterator[None]:
    """Pickle the contents of these modules by value, for a time."""
    import cloudpickle

    # Skip second names of modules, and modules that the caller registered.
    named = {module.__name__: module for module in modules if sys.modules.get(module.__name__) is module}
    ours = [named[name] for name in named.keys() - cloudpickle.list_registry_pickle_by_value()]
    for module in ours:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in ours:
            cloudpickle.unregister_pickle_by_value(module)


def sources_of(value: Any) -> dict[str, str]:
    """Return the texts of notebook cells with the object's code, by their file names."""
    codes = [part.__code__ for part in _within(value) if isinstance(part, FunctionType)]
    files = {code.co_filename for code in codes}
    return {file: "".join(lines) for file in files if (lines := linecache.getlines(file)) and _is_cell(file)}


def code_of(value: Any) -> CodeType | None:
    """Return the code of a function, or of the first function inside an object."""
    functions = (part for part in _within(value) if isinstance(part, FunctionType))
    return next((function.__code__ for function in functions), None)


def _is_cell(file: str) -> bool:
    return file.startswith("<") or "ipykernel_" in file


def _within(value: Any, most: int = 10_000) -> list[Any]:
    """Return the object and everything inside, each once."""
    parts, seen = [value], {id(value)}
    for holder in parts:
        new = [part for _, part in insides(holder) if id(part) not in seen]
        seen |= set(map(id, new))
        parts += new
        if len(parts) > most:
            break
    return parts


def _dumped(value: Any) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc,name-defined]
        def reducer_override(self, obj: Any) -> Any:
            ours = reduced_our_way(obj)
            return super().reducer_override(obj) if ours is NotImplemented else ours

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def _can_travel(value: Any) -> bool:
    try:
        _dumped(value)
    except Exception:
        return False
    return True


def _why(value: Any, error: Exception) -> str:
    """Name the part that can't travel, and its place."""
    path, at = [], value
    seen = {id(value)}
    while True:
        parts = ((words, part) for words, part in insides(at) if id(part) not in seen)
        inner = next(((words, part) for words, part in parts if not _can_travel(part)), None)
        if inner is None:
            break
        path.append(inner[0])
        at = inner[1]
        seen.add(id(at))
    if not path:
        return f"can't travel to another process: {type(error).__name__}: {error}"
    what, remedy = _words_for(at)
    return f"uses {', in it '.join(path)} ({what}), which can't travel to another process; {remedy}"


def _words_for(value: Any) -> tuple[str, str]:
    """Return words for a thing that can't travel, and a remedy."""
    if isinstance(value, io.IOBase):
        return f"an open file {getattr(value, 'name', '')!r}", "open it inside the function"
    for kind, words in KINDS:
        if isinstance(value, kind):
            return words, "make it inside the function, or make a list of it"
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    return BY_TYPE.get(name, name), "make it inside the function, or in the __init__ of a class"


def _largest(value: Any) -> str:
    sized = [(len(_dumped(part)), words) for words, part in insides(value)]
    size, words = max(sized, default=(0, "its code"))
    return f"{words}: {size >> 20} MiB"
