"""Budget of the tokens that the model may write in one episode, with several open calls."""

import asyncio
import math


class TokenBudget:
    """Budget from which open calls hold the most that they may write, in the event loop's thread.

    Example: of 100 tokens one call holds 80 and writes 30; a second call that wants 50 waits for the release.

    Args:
        total: tokens; None: no limit.
    """

    def __init__(self, total: int | None) -> None:
        self._left: float = math.inf if total is None else total
        self._num_held = 0
        self._released = asyncio.Event()

    async def hold(self, wanted: int, num_answers: int = 1) -> int:
        """Hold tokens for each of a call's answers; return how many; 0: less than one is left for good.

        A call that would get less than it wants waits while others hold tokens that they may not need. So its
        answer does not depend on other open calls.
        """
        while (left := self._left - self._num_held) < wanted * num_answers and self._num_held:
            self._released.clear()
            await self._released.wait()
        held = int(min(wanted, left // num_answers))
        self._num_held += held * num_answers
        return held

    def release(self, held: int, num_written: int) -> None:
        """Give back a call's held tokens, minus the tokens that it wrote."""
        self._num_held -= held
        self._left -= num_written
        self._released.set()
