"""How many calls may be under way at a time: a semaphore whose limit can move both ways."""

import asyncio


class Slots:
    """At most `limit` at a time inside of `async with`; the limit may change meanwhile."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken = 0
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._taken < self.limit)
            self._taken += 1

    async def __aexit__(self, *_: object) -> None:
        self._taken -= 1
        async with self._changed:
            self._changed.notify(1)

    async def change(self, limit: int) -> None:
        async with self._changed:
            self.limit = limit
            self._changed.notify_all()
