"""Python's garbage collection in processes whose imports and models are millions of lasting objects."""

import atexit
import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage inside the context, and later skip the objects that exist at its end.

    Python would look at all imported objects again and again: a quarter of the time of a large import.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    atexit.register(gc.unfreeze)  # else libraries print at the end that these objects leak
    try:
        yield
    finally:
        gc.collect()  # later collections would never free today's garbage
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def lasting_objects_left_alone() -> Iterator[None]:
    """Exclude the objects of this moment from every collection: libraries, clients, a task's prompts.

    A large batch makes Python look through all objects several times an iteration, and these never go.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
