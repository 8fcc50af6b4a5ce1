"""Python's garbage collection in a run, whose batches are many objects that come and go."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def lasting_objects_left_alone() -> Iterator[None]:
    """Leave the objects that are there now out of every collection: libraries, clients, a task's prompts.

    A large batch makes Python look through all objects several times an iteration, and these never go.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
