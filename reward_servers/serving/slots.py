"""A semaphore whose limit can rise and fall, for the number of calls under way at a time."""

import asyncio


class Slots:
    """A limit on tasks inside of `async with`, which may change meanwhile."""

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
