"""Tokens that the model may write in one episode, whose calls may be open at the same time."""

import asyncio
import math


class TokenBudget:
    """Budget of which open calls hold what they may write at most, in the event loop's thread.

    Example: of 100 tokens one call holds 80 and writes 30; a second call that wants 50 waits for that.

    Args:
        total: tokens; None: no limit.
    """

    def __init__(self, total: int | None) -> None:
        self._left: float = math.inf if total is None else total
        self._num_held = 0
        self._released = asyncio.Event()

    async def hold(self, wanted: int, num_answers: int = 1) -> int:
        """Hold tokens for each of a call's answers; return how many, 0 where fewer than one is left for good.

        A call that would get less than it wants waits while others hold tokens that they may not need, so
        that its answer does not depend on what is open beside it.
        """
        while (left := self._left - self._num_held) < wanted * num_answers and self._num_held:
            self._released.clear()
            await self._released.wait()
        held = int(min(wanted, left // num_answers))
        self._num_held += held * num_answers
        return held

    def release(self, held: int, num_written: int) -> None:
        """Give back what a call held, less what it has written."""
        self._num_held -= held
        self._left -= num_written
        self._released.set()
