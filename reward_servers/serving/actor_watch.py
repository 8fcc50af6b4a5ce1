"""Replace an actor that hangs, Serve's controller or a grader's process: Ray notices only a death.

driver ── alive? ──▶ actor      no answer within the limit ─▶ killed ─▶ Ray starts another one; the
                                controller's successor reads the state that was left, and takes waiting calls
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayError, RayTaskError
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from reward_servers.serving.beside import Handle
from reward_servers.settings import RewardServersSettings

ASK_EVERY_S = 1.0
LEAST_S = 10.0  # a limit below it would take a busy machine's actor for one that hangs
JOIN_S = 5.0
START_REMEDY = "; raise reward_servers.start_timeout_s"


@dataclass(frozen=True, slots=True)
class Watched:
    """An actor that is asked for a sign of life."""

    name: str  # as warnings call it
    find: Callable[[], Any]  # returns the actor; raises ValueError if it is not there yet
    question: str  # the method that answers while all is well, and may raise
    start_limit: tuple[float, str]  # seconds for an actor that starts, and what raises them
    limit: tuple[float, str]  # the same for one that runs


def controller(settings: RewardServersSettings) -> Watched:
    """Return Serve's controller, with the settings' time-outs as limits, at least 10 s."""
    return Watched(
        name="Serve's controller",
        find=lambda: ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE),
        question="check_alive",
        start_limit=(max(LEAST_S, settings.start_timeout_s), START_REMEDY),
        limit=(max(LEAST_S, settings.default.timeout_s), "; raise reward_servers.default.timeout_s"),
    )


def grader_process(handle: Handle) -> Watched:
    """Return a grader's process beside the driver."""
    return Watched(
        name=f"the process of {handle.name}",
        find=lambda: handle.actor,
        question="check_health",
        start_limit=(handle.start_timeout_s, START_REMEDY),
        limit=(handle.hangs_after_s, f"; raise reward_servers.{handle.label}.timeout_s"),
    )


@contextlib.contextmanager
def watched(actors: Sequence[Watched], warn: Callable[[str], None]) -> Iterator[None]:
    """Watch the actors on the connected cluster, from before their start to the end of the context.

    Args:
        warn: called from another thread when an actor is replaced.
    """
    is_over = threading.Event()
    watches = [
        threading.Thread(target=_watch, args=(actor, warn, is_over), name=f"watch {actor.name}", daemon=True)
        for actor in actors
    ]
    for watch in watches:
        watch.start()
    try:
        yield
    finally:
        is_over.set()
        for watch in watches:
            watch.join(JOIN_S)  # a thread that still asks Ray must end before Ray does


def _watch(watched_actor: Watched, warn: Callable[[str], None], is_over: threading.Event) -> None:
    current = watched_actor.start_limit
    refused_since: float | None = None
    while not is_over.wait(ASK_EVERY_S) and ray.is_initialized():
        with contextlib.suppress(ValueError, RayError):  # not there yet; or it died by itself
            actor = watched_actor.find()
            answer = getattr(actor, watched_actor.question).remote()
            try:
                problem = _problem(answer, current, is_over)
            except ActorDiedError:  # for good, so that the next call says why
                continue
            except RayActorError:  # another one starts
                current = watched_actor.start_limit
                refused_since = refused_since or time.monotonic()
                if time.monotonic() - refused_since < current[0]:
                    continue
                problem = f"did not start again within {current[0]:g} s{current[1]}"
            refused_since, current = None, watched_actor.limit
            if problem is not None:
                ray.kill(actor, no_restart=False)
                warn(f"{watched_actor.name} {problem}. Another one starts")
                current = watched_actor.start_limit


def _problem(answer: "ray.ObjectRef[None]", limit: tuple[float, str], is_over: threading.Event) -> str | None:
    """Return why the actor is to be replaced; None if it answered well, or the watch is over."""
    limit_s, remedy = limit
    waited_s = 0.0
    while not ray.wait([answer], timeout=ASK_EVERY_S)[0]:
        waited_s += ASK_EVERY_S
        if is_over.is_set():
            return None
        if waited_s > limit_s:
            return f"gave no sign of life for {limit_s:g} s{remedy}"
    try:
        ray.get(answer)
    except RayTaskError as error:
        return f"hangs: {error.cause}"
    return None
