"""The door of one episode: its program's calls come in, the model answers, and every token is recorded.

A door has budgets. What goes beyond them is refused, and costs the other episodes nothing.
"""

import asyncio
import hashlib
import math
import time
from array import array
from collections import Counter
from dataclasses import replace

from contracts.rollout import Lease, Sampling
from rollout_workers.engines.base import Generation
from rollout_workers.environments.program import Program
from rollout_workers.gateway.bodies import Asked, Refused
from rollout_workers.gateway.engine_calls import EngineCalls
from rollout_workers.gateway.history import History, continued
from rollout_workers.gateway.reading import Read, Reader, Reply, beyond_window

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
        self._num_tokens = 0
        self._num_open = 0
        self._quiet_since = time.monotonic()
        self._same: Counter[bytes] = Counter()  # answers by what they read

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
            sampling = self._sampling(asked, len(context))
            drawn = await self._draw(context, sampling, asked.num_choices)
        finally:
            self._num_open -= 1
            self._quiet_since = time.monotonic()
        return len(context), [self._record(asked, read, each) for each in drawn]

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
        if settings.token_budget is not None and self._num_tokens >= settings.token_budget:
            self.is_cut = True
            raise Refused(
                403,
                f"the episode's {settings.token_budget} tokens are spent (environment.token_budget)",
                "budget",
            )
        if self._num_open >= settings.max_open_calls:
            raise Refused(
                429,
                f"{self._num_open} calls are open, as many as environment.max_open_calls allows",
                "too_many_calls",
            )

    def _sampling(self, asked: Asked, num_read: int) -> Sampling:
        """Return the run's sampling within the call's limits; other tokens could not be trained on."""
        own, budget = self.lease.sampling, self._settings.token_budget
        longest = min(
            own.max_tokens, asked.max_tokens or own.max_tokens, int(min(2**31, self._window - num_read))
        )
        if budget is not None:
            longest = max(1, min(longest, budget - self._num_tokens))
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
        self._num_tokens += len(generation.tokens)
        call, reply = read.call(generation), self._reader.reply(asked, generation)
        self._reader.remember(self.history, asked, read, call, reply)
        return reply
