"""The door of one episode: its program's calls come in, the model answers, and every token is recorded.

A door has budgets. What goes beyond them is refused, and costs the other episodes nothing.
"""

import asyncio
import hashlib
import math
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from contracts.rollout import Lease, Sampling
from rollout_workers.engines.base import Generation
from rollout_workers.environments.program import Program
from rollout_workers.gateway.bodies import Asked, Refused
from rollout_workers.gateway.engine_calls import EngineCalls
from rollout_workers.gateway.history import History, continued
from rollout_workers.gateway.reading import Read, Reader, Reply, beyond_window
from rollout_workers.gateway.token_budget import TokenBudget

Tokens = tuple[int, ...]
MOST_REFUSED = 200  # calls, after which a program is ended


class EpisodeDoor:
    """Answers to the calls of one lease's program, in the event loop's thread.

    Args:
        room: the most tokens of a context; None: no limit.
        window: the most tokens of a context and its answer; None: no limit.
    """

    def __init__(
        self,
        lease: Lease,
        settings: Program,
        reader: Reader,
        calls: EngineCalls,
        room: int | None,
        window: int | None,
    ) -> None:
        self.lease, self._settings, self._reader, self._engine = lease, settings, reader, calls
        self._window = math.inf if window is None else window
        self._room = min(self._window - 1, math.inf if room is None else room)
        self.history = History()
        self.is_shut = False
        self.is_cut = False  # the program asked for more than its budget
        self.is_full = False  # a context left no room for an answer
        self.num_refused = 0
        self.flooded = asyncio.Event()
        self._num_answers = 0  # begun ones, too
        self._budget = TokenBudget(settings.token_budget)
        self.num_inside = 0  # calls whose bodies are being read, or which wait for answers
        self._num_open = 0  # those that wait for answers
        self._quiet_since = time.monotonic()
        self._same: Counter[bytes] = Counter()  # answers by what they read

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count a call, from before its body is read until it is answered.

        Raises:
            Refused: as many calls are inside as may be.
        """
        if self.num_inside >= self._settings.max_open_calls:
            raise Refused(
                429,
                f"{self.num_inside} calls are open, as many as environment.max_open_calls allows",
                "too_many_calls",
            )
        self.num_inside += 1
        try:
            yield
        finally:
            self.num_inside -= 1

    async def answer(self, asked: Asked) -> tuple[int, list[Reply]]:
        """Return the number of tokens that the model read, and its answers.

        Raises:
            Refused: the call goes beyond a budget, or does not fit the model.
        """
        self._admit(asked)
        read = self._reader.read(asked, self.history)
        context = continued(read.parent) + read.observed
        if not 0 < len(context) <= self._room:
            self.is_full = bool(self.history.calls)
            raise beyond_window(len(context), int(self._room))
        self._num_answers += asked.num_choices
        self._num_open += 1
        try:
            return len(context), await self._answered(asked, read, context)
        finally:
            self._num_open -= 1
            self._quiet_since = time.monotonic()

    def refused(self) -> None:
        """Count a refused call; too many of them end the program."""
        self.num_refused += 1
        if self.num_refused > MOST_REFUSED:
            self.flooded.set()

    @property
    def num_answers(self) -> int:
        return self._num_answers

    @property
    def patience_s(self) -> float:
        """Return for how many seconds more the program may make no call; below 0, it hangs."""
        if self._num_open:
            return self._settings.step_timeout_s
        limit_s = self._settings.step_timeout_s if self._num_answers else self._settings.start_timeout_s
        return limit_s - (time.monotonic() - self._quiet_since)

    def _admit(self, asked: Asked) -> None:
        settings = self._settings
        if self.is_shut:
            raise Refused(401, "the episode is over", "invalid_api_key")
        if self._num_answers + asked.num_choices > settings.max_turns:
            self.is_cut = True
            raise Refused(
                403, f"the episode's {settings.max_turns} answers are spent (environment.max_turns)", "budget"
            )

    async def _answered(self, asked: Asked, read: Read, context: Tokens) -> list[Reply]:
        """Draw and record a call's answers, within the budget of tokens."""
        budget = self._settings.token_budget
        held = await self._budget.hold(self._longest(asked, len(context)), asked.num_choices)
        written = 0
        try:
            if not held:
                self.is_cut = True
                raise Refused(
                    403, f"the episode's {budget} tokens are spent (environment.token_budget)", "budget"
                )
            drawn = await self._draw(context, self._sampling(asked, held), asked.num_choices)
            replies = [self._record(asked, read, each) for each in drawn]
            written = sum(reply.num_tokens for reply in replies)
            return replies
        finally:
            self._budget.release(held * asked.num_choices, written)

    def _longest(self, asked: Asked, num_read: int) -> int:
        """Return how many tokens an answer may have at most, if the budget has them."""
        own = self.lease.sampling.max_tokens
        return min(own, asked.max_tokens or own, int(min(2**31, self._window - num_read)))

    def _sampling(self, asked: Asked, longest: int) -> Sampling:
        """Return the run's sampling within the call's limits; other tokens could not be trained on."""
        own = self.lease.sampling
        return replace(
            own,
            max_tokens=longest,
            min_tokens=min(own.min_tokens, longest),
            stop=tuple(dict.fromkeys((*own.stop, *asked.stop))),
        )

    async def _draw(self, context: Tokens, sampling: Sampling, count: int) -> list[Generation]:
        seeds = [self._seed(context) for _ in range(count)]
        if count == 1:
            return [await self._engine.generate(context, sampling, seeds[0])]
        return await asyncio.gather(*(self._engine.generate(context, sampling, seed) for seed in seeds))

    def _seed(self, context: Tokens) -> int:
        """Return a seed of the lease, the context and its repetitions: the order of calls does not matter."""
        digest = hashlib.blake2b(array("q", context).tobytes(), digest_size=16).digest()
        self._same[digest] += 1
        source = f"{self.lease.seed} {digest.hex()} {self._same[digest]}".encode()
        return int.from_bytes(hashlib.blake2b(source, digest_size=8).digest(), "little") >> 1

    def _record(self, asked: Asked, read: Read, generation: Generation) -> Reply:
        if self.is_shut:
            raise Refused(401, "the episode is over", "invalid_api_key")
        call, reply = read.call(generation), self._reader.reply(asked, generation)
        self._reader.remember(self.history, asked, read, call, reply)
        return reply
