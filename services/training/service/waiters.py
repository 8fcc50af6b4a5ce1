"""Let requests of the web server wait for answers from other threads."""

import asyncio
from collections import defaultdict


class Waiters:
    """Events of one event loop, by the id of a call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: dict[str, set[asyncio.Event]] = defaultdict(set)

    def expect(self, call: str) -> asyncio.Event:
        """Return a new event for a call's answer. Check for the answer afterwards, so that none is missed."""
        self._loop = asyncio.get_running_loop()
        event = asyncio.Event()
        self._events[call].add(event)
        return event

    def forget(self, call: str, event: asyncio.Event) -> None:
        self._events[call].discard(event)
        if not self._events[call]:
            del self._events[call]

    def wake(self, call: str) -> None:
        """Wake all that wait for a call. Any thread may call this."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set, call)

    def _set(self, call: str) -> None:
        for event in self._events.get(call, ()):
            event.set()
