"""The door of one episode: its program's calls come in, the model answers, and every token is recorded.

    model="policy"         the policy, in its one role
    model="policy/critic"  the policy in a role of its own: other sequences, other rewards
    model="partner"        a frozen model, of which nothing is recorded

A door has budgets. What goes beyond them is refused, and costs the other episodes nothing.
"""

import asyncio
import hashlib
import json
import math
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from contracts.rollout import Lease, Sampling
from rollout_workers.engines.base import Generation
from rollout_workers.environments.program import ProgramSettings
from rollout_workers.gateway.bodies import PARTNER, Asked, Refused
from rollout_workers.gateway.engine_calls import EngineCalls
from rollout_workers.gateway.history import History, continued
from rollout_workers.gateway.open_calls import OpenCalls
from rollout_workers.gateway.reading import TOO_LONG, Read, Reader, Reply, beyond_window
from rollout_workers.gateway.serving import ModelDoor
from rollout_workers.gateway.token_budget import TokenBudget

Tokens = tuple[int, ...]
# A longer body is refused unread where it can't fit: to read it would hold up the other episodes.
BYTES_AT_EASE, BYTES_OF_A_TOKEN = 2**20, 128
MOST_REFUSED = 200  # calls, after which a program is ended


class EpisodeDoor:
    """Answers to the calls of one lease's program, in the event loop's thread.

    Args:
        room: the most tokens of a context; None: no limit.
        window: the most tokens of a context and its answer; None: no limit.
        partner: a frozen model, which calls may ask for; None: there is none.
    """

    def __init__(
        self,
        lease: Lease,
        settings: ProgramSettings,
        reader: Reader,
        calls: EngineCalls,
        room: int | None,
        window: int | None,
        partner: ModelDoor | None = None,
    ) -> None:
        self.lease, self._settings, self._reader, self._engine = lease, settings, reader, calls
        self._partner = partner
        self._window = math.inf if window is None else window
        self._room = min(self._window - 1, math.inf if room is None else room)
        self.history = History()
        self.is_shut = False
        self.is_cut = False  # the program asked for more answers than its budget allows
        self.is_spent = False  # the budget of tokens is spent
        self.is_full = False  # a context left no room for an answer
        self.num_refused, self._last_refusal = 0, ""
        self.flooded = asyncio.Event()
        self._num_answers = 0  # of the policy; begun ones, too
        self._num_heard = 0  # of the partner
        self._budget = TokenBudget(settings.token_budget)
        self.inside = OpenCalls(settings.max_open_calls, "environment.max_open_calls")
        self._num_open = 0  # those that wait for answers
        self._quiet_since = time.monotonic()
        self._same: Counter[bytes] = Counter()  # answers by what they read

    def entered(self) -> AbstractContextManager[None]:
        """Let a call in, or refuse it."""
        return self.inside.entered()

    async def answer(self, asked: Asked) -> tuple[int, list[Reply]]:
        """Return the number of tokens that the model read, and its answers.

        Raises:
            Refused: the call goes beyond a budget, or does not fit the model.
        """
        if self.is_shut:
            raise Refused(401, "the episode is over", "invalid_api_key")
        return await (self._ask_partner(asked) if asked.model == PARTNER else self._ask_policy(asked))

    def refused(self, reason: str) -> None:
        """Count a refused call; too many of them end the program."""
        self.num_refused, self._last_refusal = self.num_refused + 1, reason
        if self.num_refused > MOST_REFUSED:
            self.flooded.set()

    @property
    def refusals(self) -> str:
        """Return what to add to an error: how many calls were refused, and why the last one; or nothing."""
        if not self.num_refused:
            return ""
        return f"; its refused calls: {self.num_refused}, the last one: {self._last_refusal}"

    @property
    def num_answers(self) -> int:
        return self._num_answers + self._num_heard

    @property
    def patience_s(self) -> float:
        """Return for how many seconds more the program may make no call; below 0, it hangs."""
        if self._num_open:
            return self._settings.step_timeout_s
        limit_s = self._settings.step_timeout_s if self.num_answers else self._settings.start_timeout_s
        return limit_s - (time.monotonic() - self._quiet_since)

    async def _ask_policy(self, asked: Asked) -> tuple[int, list[Reply]]:
        if asked.more_prompts:
            raise Refused(400, "prompt: expected one text or one list of tokens while the model trains")
        self._admit(asked, self._num_answers)
        if asked.num_bytes > max(BYTES_AT_EASE, BYTES_OF_A_TOKEN * self._room):
            self.is_full = bool(self.history.calls)
            raise Refused(
                400, f"{asked.num_bytes} bytes do not fit into a context of {self._room:g} tokens", TOO_LONG
            )
        read = self._reader.read(asked, self.history)
        context = continued(read.parent) + read.observed
        if not 0 < len(context) <= self._room:
            self.is_full = bool(self.history.calls)
            raise beyond_window(len(context), int(self._room))
        self._num_answers += asked.num_choices
        with self._opened():
            return len(context), await self._answered(asked, read, context)

    async def _ask_partner(self, asked: Asked) -> tuple[int, list[Reply]]:
        if self._partner is None:
            raise Refused(
                404,
                f"model={PARTNER!r} is a frozen model, and this run has none: expected environment."
                "partner_options={model: …}, or another name for the policy",
                "model_not_found",
            )
        self._admit(asked, self._num_heard)
        self._num_heard += asked.num_choices
        said = json.dumps([PARTNER, asked.messages, asked.tools, asked.prompt]).encode()
        seed = self._seed(said) if asked.seed is None else asked.seed
        with self._opened():
            try:
                return await self._partner.answer(replace(asked, seed=seed))
            except Refused as refused:
                if refused.code == TOO_LONG:
                    self.is_full = bool(self.history.calls)
                raise

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Count a call among those that wait for answers, in which time the program may be silent."""
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1
            self._quiet_since = time.monotonic()

    def _admit(self, asked: Asked, num_spent: int) -> None:
        most, wanted = self._settings.max_turns, asked.num_choices
        if wanted > most:
            raise Refused(400, f"n={wanted}: expected at most {most}, which environment.max_turns allows")
        if num_spent + wanted > most:
            self.is_cut = True
            raise Refused(
                403,
                f"{wanted} more answers were asked for, and {most - num_spent} of the episode's {most} "
                "are left (environment.max_turns)",
                "budget",
            )

    async def _answered(self, asked: Asked, read: Read, context: Tokens) -> list[Reply]:
        """Draw and record a call's answers, within the budget of tokens."""
        budget = self._settings.token_budget
        held = await self._budget.hold(self._longest(asked, len(context)), asked.num_choices)
        written = 0
        try:
            if not held:
                self.is_spent = True
                raise Refused(
                    403, f"the episode's {budget} tokens are spent (environment.token_budget)", "budget"
                )
            said = asked.role.encode() + array("q", context).tobytes()
            seeds = [self._seed(said) for _ in range(asked.num_choices)]
            drawn = await self._drawn(context, self._sampling(asked, held), seeds)
            replies = [self._record(asked, read, each) for each in drawn]
            written = sum(reply.num_tokens for reply in replies)
            return replies
        except asyncio.CancelledError:  # the caller has gone, and the engine writes on
            written = held * asked.num_choices
            raise
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

    async def _drawn(self, context: Tokens, sampling: Sampling, seeds: Sequence[int]) -> list[Generation]:
        if len(seeds) == 1:
            return [await self._engine.generate(context, sampling, seeds[0])]
        return await asyncio.gather(*(self._engine.generate(context, sampling, seed) for seed in seeds))

    def _seed(self, said: bytes) -> int:
        """Return a seed of the lease, of what is read and its repetitions, whatever the order of calls."""
        digest = hashlib.blake2b(said, digest_size=16).digest()
        self._same[digest] += 1
        source = f"{self.lease.seed} {digest.hex()} {self._same[digest]}".encode()
        return int.from_bytes(hashlib.blake2b(source, digest_size=8).digest(), "little") >> 1

    def _record(self, asked: Asked, read: Read, generation: Generation) -> Reply:
        if self.is_shut:
            raise Refused(401, "the episode is over", "invalid_api_key")
        call, reply = read.call(generation, asked.role), self._reader.reply(asked, generation)
        self._reader.remember(self.history, asked, read, call, reply)
        return reply
