"""Bridge between the gateway's event loop and the thread that steps the engine.

    event loop:  await generate(…) ─▶ asked ─┐                       ┌─▶ every awaited answer
    engine's thread:                         └▶ take ─▶ step ─▶ answer

A step's answers cross to the loop together. Requests join the engine's running batch at its next step.
"""

import asyncio
import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from contracts.rollout import Sampling
from rollout_workers.engines.base import Generation, Request
from rollout_workers.gateway.bodies import Refused

MOST_GIVEN_UP = 4096  # remembered ids of abandoned calls; a training worker finishes these and never asks
GATHER_S = 0.002  # an idle engine waits this long, so that simultaneous requests share a batch


class EngineCalls:
    """Requests of an event loop to an engine in another thread.

    Args:
        roles: roles with an adapter in the engine; (): one model answers all.
    """

    def __init__(self, roles: tuple[str, ...] = ()) -> None:
        self._roles = roles
        self._numbers = itertools.count()
        self._asked: deque[Request] = deque()
        self._has_come = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._awaited: dict[int, asyncio.Future[Generation]] = {}
        self._ended = ""  # why the engine takes no more requests
        self._given_up: deque[int] = deque(maxlen=MOST_GIVEN_UP)

    # ---- in the event loop ----

    async def generate(
        self, tokens: tuple[int, ...], sampling: Sampling, seed: int, role: str = ""
    ) -> Generation:
        """Return the model's answer. A cancelled call is given up, and its answer is never read.

        Raises:
            Refused: the engine does not take the call, or has failed.
        """
        self._loop = asyncio.get_running_loop()
        if self._roles and role not in self._roles:
            raise Refused(
                404,
                f"the model policy{f'/{role}' if role else ''} has no adapter: expected one of "
                f"{', '.join(f'policy/{name}' for name in self._roles)} (model.adapter.roles)",
                "model_not_found",
            )
        request = Request(next(self._numbers), tokens, sampling, seed, role)
        future = self._awaited[request.id] = self._loop.create_future()
        self._asked.append(request)
        self._has_come.set()
        if self._ended:
            self._fail((request.id,), _dead(self._ended))
        try:
            return await future
        finally:
            self._awaited.pop(request.id, None)
            if not future.done() or future.cancelled():
                self._given_up.append(request.id)

    def _settle(self, generations: Sequence[Generation]) -> None:
        for generation in generations:
            future = self._awaited.get(generation.request_id)
            if future is not None and not future.done():
                future.set_result(generation)

    def _fail(self, numbers: Collection[int], refused: Refused) -> None:
        for number in numbers:
            future = self._awaited.get(number)
            if future is not None and not future.done():
                future.set_exception(refused)

    def _fail_all(self) -> None:
        self._fail(tuple(self._awaited), _dead(self._ended))

    # ---- in the engine's thread ----

    def wake(self) -> None:
        """End the wait of `take` for another reason than a request."""
        self._has_come.set()

    def take(self, wait_s: float) -> list[Request]:
        """Return the new requests; if there are none, wait for news for at most `wait_s`."""
        if wait_s and not self._asked:
            self._has_come.wait(wait_s)
        self._has_come.clear()
        while wait_s and self._asked:  # requests that come together form one batch
            count = len(self._asked)
            time.sleep(GATHER_S)
            if len(self._asked) == count:
                break
        taken = [self._asked.popleft() for _ in range(len(self._asked))]
        return [request for request in taken if request.id in self._awaited]

    def take_given_up(self) -> set[int]:
        """Return the requests whose callers have left since the last call."""
        return {self._given_up.popleft() for _ in range(len(self._given_up))}

    def refuse(self, numbers: Collection[int], reason: str) -> None:
        """Answer requests that the engine refuses or can't finish."""
        self._in_loop(lambda: self._fail(numbers, Refused(400, reason)))

    def end(self, reason: str) -> None:
        """Answer all open and future calls, because the engine has failed."""
        self._ended = reason
        self._in_loop(self._fail_all)

    def answer(self, generations: Sequence[Generation]) -> None:
        """Pass on the engine's finished generations."""
        if generations:
            self._in_loop(lambda: self._settle(generations))

    def _in_loop(self, act: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(act)


def _dead(reason: str) -> Refused:
    return Refused(503, reason, "server_error")
