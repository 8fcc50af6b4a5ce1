"""The door of one episode: its program's calls come in, the model answers, and every token is recorded.

    model="policy"         the policy, in its only role
    model="policy/critic"  the policy in the role `critic`: other sequences, other rewards
    model="partner"        a frozen model, of which nothing is recorded

A door has budgets. Calls beyond them are refused, so they cost other episodes nothing.
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
# A longer body that can't fit is refused unread, because reading it would delay the other episodes.
BYTES_AT_EASE, BYTES_OF_A_TOKEN = 2**20, 128
MOST_REFUSED = 200  # refused calls after which a program is ended


class EpisodeDoor:
    """Answers to the calls of one lease's program, in the event loop's thread.

    Args:
        room: limit of a context's tokens; None: no limit.
        window: limit of a context's and its answer's tokens; None: no limit.
        partner: a frozen model that calls may name; None: there is none.
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
        self._num_answers = 0  # answers of the policy, including unfinished ones
        self._num_heard = 0  # answers of the partner
        self._budget = TokenBudget(settings.token_budget)
        self.inside = OpenCalls(settings.max_open_calls, "environment.max_open_calls")
        self._num_open = 0  # calls that wait for answers
        self._quiet_since = time.monotonic()
        self._same: Counter[bytes] = Counter()  # number of answers for each text that was read

    def entered(self) -> AbstractContextManager[None]:
        """Let a call in, or refuse it."""
        return self.inside.entered()

    async def answer(self, request: Asked) -> tuple[int, list[Reply]]:
        """Return the number of tokens that the model read, and its answers.

        Raises:
            Refused: the call exceeds a budget, or does not fit the model.
        """
        if self.is_shut:
            raise Refused(401, "the episode is over", "invalid_api_key")
        return await (self._ask_partner(request) if request.model == PARTNER else self._ask_policy(request))

    def refused(self, reason: str) -> None:
        """Count a refused call; too many of them end the program."""
        self.num_refused, self._last_refusal = self.num_refused + 1, reason
        if self.num_refused > MOST_REFUSED:
            self.flooded.set()

    @property
    def refusals(self) -> str:
        """Return how many calls were refused and why the last one, for an error; or nothing."""
        if not self.num_refused:
            return ""
        return f"; its refused calls: {self.num_refused}, the last one: {self._last_refusal}"

    @property
    def num_answers(self) -> int:
        return self._num_answers + self._num_heard

    def begins(self) -> None:
        """Count the program's time from now on."""
        self._quiet_since = time.monotonic()

    @property
    def patience_s(self) -> float:
        """Return the seconds that remain until the program must make a call; below 0, it hangs."""
        if self._num_open:
            return self._settings.step_timeout_s
        limit_s = self._settings.step_timeout_s if self.num_answers else self._settings.start_timeout_s
        return limit_s - (time.monotonic() - self._quiet_since)

    async def _ask_policy(self, request: Asked) -> tuple[int, list[Reply]]:
        if request.more_prompts:
            raise Refused(400, "prompt: expected one text or one list of tokens while the model trains")
        self._admit(request, self._num_answers)
        if request.num_bytes > max(BYTES_AT_EASE, BYTES_OF_A_TOKEN * self._room):
            self.is_full = bool(self.history.calls)
            raise Refused(
                400, f"{request.num_bytes} bytes do not fit into a context of {self._room:g} tokens", TOO_LONG
            )
        read = self._reader.read(request, self.history)
        context = continued(read.parent) + read.observed
        if not 0 < len(context) <= self._room:
            self.is_full = bool(self.history.calls)
            raise beyond_window(len(context), int(self._room))
        self._num_answers += request.num_choices
        with self._opened():
            return len(context), await self._answered(request, read, context)

    async def _ask_partner(self, request: Asked) -> tuple[int, list[Reply]]:
        if self._partner is None:
            raise Refused(
                404,
                f"model={PARTNER!r} is a frozen model, and this run has none: expected environment."
                "partner_options={model: …}, or another name for the policy",
                "model_not_found",
            )
        self._admit(request, self._num_heard)
        self._num_heard += request.num_choices
        text = json.dumps([PARTNER, request.messages, request.tools, request.prompt]).encode()
        seed = self._seed(text) if request.seed is None else request.seed
        with self._opened():
            try:
                return await self._partner.answer(replace(request, seed=seed))
            except Refused as refused:
                if refused.code == TOO_LONG:
                    self.is_full = bool(self.history.calls)
                raise

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Count a call that waits for answers; meanwhile the program may be silent."""
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1
            self._quiet_since = time.monotonic()

    def _admit(self, request: Asked, num_spent: int) -> None:
        most, wanted = self._settings.max_turns, request.num_choices
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

    async def _answered(self, request: Asked, read: Read, context: Tokens) -> list[Reply]:
        """Draw and record a call's answers, within the token budget."""
        budget = self._settings.token_budget
        held = await self._budget.hold(self._longest(request, len(context)), request.num_choices)
        written = 0
        try:
            if not held:
                self.is_spent = True
                raise Refused(
                    403, f"the episode's {budget} tokens are spent (environment.token_budget)", "budget"
                )
            text = request.role.encode() + array("q", context).tobytes()
            seeds = [self._seed(text) for _ in range(request.num_choices)]
            drawn = await self._drawn(context, self._sampling(request, held), seeds, request.role)
            replies = [self._record(request, read, generation) for generation in drawn]
            written = sum(reply.num_tokens for reply in replies)
            return replies
        except asyncio.CancelledError:  # the caller has left, but the engine still writes
            written = held * request.num_choices
            raise
        finally:
            self._budget.release(held * request.num_choices, written)

    def _longest(self, request: Asked, num_read: int) -> int:
        """Return the limit of an answer's tokens, if the budget has them."""
        most = self.lease.sampling.max_tokens
        return min(most, request.max_tokens or most, int(min(2**31, self._window - num_read)))

    def _sampling(self, request: Asked, longest: int) -> Sampling:
        """Return the run's sampling within the call's limits; it could not train on other tokens."""
        sampling = self.lease.sampling
        return replace(
            sampling,
            max_tokens=longest,
            min_tokens=min(sampling.min_tokens, longest),
            stop=tuple(dict.fromkeys((*sampling.stop, *request.stop))),
        )

    async def _drawn(
        self, context: Tokens, sampling: Sampling, seeds: Sequence[int], role: str
    ) -> list[Generation]:
        if len(seeds) == 1:
            return [await self._engine.generate(context, sampling, seeds[0], role)]
        return await asyncio.gather(*(self._engine.generate(context, sampling, seed, role) for seed in seeds))

    def _seed(self, text: bytes) -> int:
        """Return a seed from the lease, the text read and its repetitions, for any order of calls."""
        digest = hashlib.blake2b(text, digest_size=16).digest()
        self._same[digest] += 1
        source = f"{self.lease.seed} {digest.hex()} {self._same[digest]}".encode()
        return int.from_bytes(hashlib.blake2b(source, digest_size=8).digest(), "little") >> 1

    def _record(self, request: Asked, read: Read, generation: Generation) -> Reply:
        if self.is_shut:
            raise Refused(401, "the episode is over", "invalid_api_key")
        call, reply = read.call(generation, request.role), self._reader.reply(request, generation)
        self._reader.remember(self.history, request, read, call, reply)
        return reply
