"""Progress messages for slow steps: name, time so far, and duration."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from contracts.processes import timeline
from services.terminal.readable import duration
from services.terminal.visible import visible

FIRST_S = 0.7
AGAIN_S = 10.0

_under_way: list[object] = []  # innermost step last; only it repeats its message


def to_stderr(text: str) -> None:
    """Print `text` to standard error, because standard output is for results."""
    with contextlib.suppress(OSError):  # standard error is closed
        print(visible(text), file=sys.stderr, flush=True)


@contextlib.contextmanager
def doing(
    what: str,
    say: Callable[[str], None] = to_stderr,
    *,
    first_s: float | None = None,
    again_s: float = AGAIN_S,
) -> Iterator[None]:
    """Report a slow step: after `first_s` (by default FIRST_S), then every `again_s`, and at its end.

    A step that ends within `first_s` is not reported.

    Example: `with doing("checking model and data"): …` may say three lines: `checking model and data …`,
    `checking model and data: 10 s so far`, `checking model and data took 13 s`
    """
    mark, is_over, began = object(), threading.Event(), time.monotonic()
    is_told = False

    def tell() -> None:
        nonlocal is_told
        if is_over.wait(FIRST_S if first_s is None else first_s):
            return
        is_told = True
        say(f"{what} …")
        while not is_over.wait(again_s):
            if _under_way[-1:] == [mark]:
                say(f"{what}: {time.monotonic() - began:.0f} s so far")

    thread = threading.Thread(target=tell, name="doing", daemon=True)
    _under_way.append(mark)
    thread.start()
    try:
        with timeline.span(what):
            yield
        is_over.set()
        thread.join()
        if is_told:
            say(f"{what} took {duration(time.monotonic() - began)}")
    finally:
        is_over.set()
        _under_way.remove(mark)
