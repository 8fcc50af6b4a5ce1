"""Garbage collection while a process starts: imports and models make millions of objects, which stay."""

import atexit
import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage inside the context, and never again at the objects that are there at its end.

    Python would look at all imported objects again and again: a quarter of the time of a large import.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    atexit.register(gc.unfreeze)  # else libraries print at the end that these objects leak
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
