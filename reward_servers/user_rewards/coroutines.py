"""Call a coroutine reward with limits of concurrency and rate, and repeat failed calls.

    calls ─▶ concurrency ─▶ rate ─▶ coroutine, at most timeout_s ─▶ answer
                 ▲                        │ raised, or took too long
                 └── a growing pause ◀────┘ at most `retries` times

Calls run in a separate event loop in a thread, so a coroutine that blocks its loop blocks nothing else.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from contracts.errors import RewardError, WhetstoneError
from reward_servers.chat_models.backoff import pause_s, wanted_s
from reward_servers.settings import ServerSettings

# Mistakes in the code, which another attempt would repeat.
LASTING = (TypeError, AttributeError, NameError, ImportError, AssertionError, NotImplementedError)

Result = TypeVar("Result")
Call = Callable[[], Awaitable[Result]]


class Coroutines:
    """A loop for calls, within the limits of a server's settings.

    The rate applies to all replicas together; `share_rate` sets their number.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._timeout_s, self._retries = settings.timeout_s, settings.retries
        self._rate = settings.rate
        self.share_rate(settings.most_replicas)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._next_at = 0.0
        self._under_way: dict[object, float] = {}  # when each call began
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="reward-coroutines", daemon=True).start()

    def share_rate(self, num_replicas: int) -> None:
        """Take one equal share of the rate; any thread may call this."""
        self._pause_s = 0.0 if self._rate is None else num_replicas / self._rate

    @property
    def busy_s(self) -> float:
        """Seconds since the oldest open call began; far above the time-out if the loop is blocked."""
        began = list(self._under_way.values())
        return time.monotonic() - min(began) if began else 0.0

    def submit(self, calls: Sequence[Call[Result]]) -> Future[list[Result | Exception]]:
        """Make the calls; the future has each call's result or last error, in order."""

        async def all_of_them() -> list[Result | Exception]:
            return await asyncio.gather(*(self._persistently(call) for call in calls))

        return asyncio.run_coroutine_threadsafe(all_of_them(), self._loop)

    async def _persistently(self, call: Call[Result]) -> Result | Exception:
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._once(call)
            except WhetstoneError as error:  # the grader's verdict, which another attempt would not change
                return error
            except TimeoutError:
                error_or_late: Exception = RewardError(f"no answer within {self._timeout_s:g} s")
            except Exception as error:  # a reward may raise anything
                error_or_late = error
            except SystemExit as error:  # it would end the loop, and every call in it
                return RewardError(f"SystemExit: {error}")
            if attempt > self._retries or isinstance(error_or_late, LASTING):
                return error_or_late
            await asyncio.sleep(pause_s(attempt, wanted_s(error_or_late)))

    async def _once(self, call: Call[Result]) -> Result:
        async with self._slots:
            await self._turn()
            token = object()
            self._under_way[token] = time.monotonic()
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await call()
            finally:
                del self._under_way[token]

    async def _turn(self) -> None:
        """Wait until the rate allows another call."""
        if not self._pause_s:
            return
        now = time.monotonic()
        at = max(self._next_at, now)
        self._next_at = at + self._pause_s
        await asyncio.sleep(at - now)
