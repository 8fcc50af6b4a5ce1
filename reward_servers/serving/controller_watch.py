"""Replace Serve's controller where it hangs: Ray notices only its death, and calls of Serve wait for it.

driver ── alive? ──▶ controller      no answer within the limit ─▶ killed ─▶ Ray starts another one,
                                     which reads the state that was left, and takes the waiting calls
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import ray
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from reward_servers.settings import RewardServersSettings

ASK_EVERY_S = 1.0
LEAST_S = 10.0  # a limit below it would take a busy machine's controller for one that hangs
JOIN_S = 5.0


@contextlib.contextmanager
def controller_watched(settings: RewardServersSettings, warn: Callable[[str], None]) -> Iterator[None]:
    """Watch the controller of the connected cluster, from before its start to the end of the context.

    Args:
        settings: a controller that runs gets `default.timeout_s`, at least 10 s; one that starts gets
            `start_timeout_s`.
        warn: called from another thread when a controller is replaced.
    """
    is_over = threading.Event()
    watch = threading.Thread(target=_watch, args=(settings, warn, is_over), name="controller", daemon=True)
    watch.start()
    try:
        yield
    finally:
        is_over.set()
        watch.join(JOIN_S)  # a thread that still asks Ray must end before Ray does


def _watch(settings: RewardServersSettings, warn: Callable[[str], None], is_over: threading.Event) -> None:
    limit = "default.timeout_s", max(LEAST_S, settings.default.timeout_s)
    current = start = "start_timeout_s", max(LEAST_S, settings.start_timeout_s)
    while not is_over.wait(ASK_EVERY_S) and ray.is_initialized():
        with contextlib.suppress(ValueError, ray.exceptions.RayError):  # not there yet; or it died by itself
            controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
            if _answers(controller.check_alive.remote(), current[1], is_over):
                current = limit
                continue
            ray.kill(controller, no_restart=False)
            warn(
                f"Serve's controller gave no sign of life for {current[1]:g} s; "
                f"raise reward_servers.{current[0]}. Another one starts"
            )
            current = start


def _answers(answer: "ray.ObjectRef[None]", limit_s: float, is_over: threading.Event) -> bool:
    """Return whether an answer came in time, or the watch is over."""
    deadline = time.monotonic() + limit_s
    while not ray.wait([answer], timeout=ASK_EVERY_S)[0]:
        if is_over.is_set():
            return True
        if time.monotonic() > deadline:
            return False
    return True
