"""Step an engine only for a gateway's calls, without leases: a finished model behind the gateway."""

import asyncio
import copy
import secrets
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, cast

from contracts.rollout import Sampling
from contracts.secrets.redaction import redact
from rollout_workers.engines.base import Engine, Generation, Request, Undrawable
from rollout_workers.gateway.bodies import Asked
from rollout_workers.gateway.engine_calls import EngineCalls
from rollout_workers.gateway.history import History
from rollout_workers.gateway.http_messages import QUICK
from rollout_workers.gateway.open_calls import OpenCalls
from rollout_workers.gateway.reading import Reader, Reply, beyond_window

WARPS = ("temperature", "top_p", "top_k", "repetition_penalty")  # the call's values win
LOOK_S = 0.5  # an idle engine checks this often whether to stop
MOST_OPEN = 1024  # calls at once, because each may hold a body of megabytes


class EngineThread:
    """Thread that makes an engine and steps it until `stop`."""

    def __init__(self, make_engine: Callable[[], Engine], calls: EngineCalls) -> None:
        self._make_engine, self._calls = make_engine, calls
        self._is_up, self._stops = threading.Event(), threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def engine(self) -> Engine:
        """Wait until the engine runs; return it.

        Raises:
            Exception: the engine's error at its start.
        """
        self._is_up.wait()
        if self.failure is not None:
            raise self.failure
        return self._engine

    def stop(self) -> None:
        """End the thread after its current step."""
        self._stops.set()
        self._calls.wake()
        self._thread.join(timeout=5)

    def wait(self, for_s: float) -> bool:
        """Wait for the thread's end; return whether it has ended."""
        self._thread.join(for_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._engine = engine = self._make_engine()
            self._is_up.set()
            while not self._stops.is_set():
                for request in self._calls.take(0.0 if engine.num_unfinished else LOOK_S):
                    self._add(engine, request)
                if given_up := self._calls.take_given_up():
                    engine.abort(given_up)
                if engine.num_unfinished:
                    self._step(engine)
        except Exception as error:  # a thread's exception would vanish
            self.failure = error
            self._calls.end(f"the engine failed: {redact(str(error))[:500]}")
            self._is_up.set()

    def _step(self, engine: Engine) -> None:
        try:
            finished: Sequence[Generation] = engine.step()
        except Undrawable as error:
            self._calls.refuse(error.failed, str(error))
            finished = error.finished
        self._calls.answer(finished)

    def _add(self, engine: Engine, request: Request) -> None:
        try:
            engine.add(request)
        # vLLM refuses a request by errors of its classes. A dead engine fails at its next step.
        except Exception as error:
            self._calls.refuse((request.id,), str(error))


class ModelDoor:
    """Door to a finished model: each call is read anew, and its options decide the sampling.

    Args:
        sampling: defaults for options that a call leaves open.
        seed: the seed of calls without one; None: a new one each time.
        longest: limit of every answer's tokens, whatever a call asks for; None: the window's.
    """

    def __init__(
        self,
        engine: Engine,
        reader: Reader,
        calls: EngineCalls,
        sampling: Sampling,
        seed: int | None = None,
        longest: int | None = None,
    ) -> None:
        self._reader, self._engine, self._sampling, self._seed = reader, calls, sampling, seed
        self._window = engine.window or 2**31
        self._longest = longest or 2**31
        self._one_large, self._large_reader = asyncio.Lock(), cast(Reader | None, None)
        self._inside = OpenCalls(MOST_OPEN, "a served model")

    def entered(self) -> AbstractContextManager[None]:
        """Let a call in, or refuse it."""
        return self._inside.entered()

    async def answer(self, request: Asked) -> tuple[int, list[Reply]]:
        """Return the number of tokens that the model read, and its answers.

        Raises:
            Refused: the call does not fit the model.
        """
        contexts = await self._contexts(request)
        for context in contexts:
            if not 0 < len(context) < self._window:
                raise beyond_window(len(context), self._window - 1)
        seed = self._seed if request.seed is None else request.seed
        first = secrets.randbits(62) if seed is None else seed
        seeds = [(first + number) % 2**62 for number in range(request.num_choices)]
        drawn = await _all_or_none(
            [
                self._engine.generate(context, self._drawn(request, self._window - len(context)), seed)
                for context in contexts
                for seed in seeds
            ]
        )
        num_read = sum(map(len, contexts))
        return num_read, [self._reader.reply(request, generation) for generation in drawn]

    def refused(self, reason: str) -> None:
        """Do nothing, because callers of a finished model may err as often as they like."""

    async def _contexts(self, request: Asked) -> list[tuple[int, ...]]:
        """Return the tokens of each prompt; a thread with another tokenizer reads a large call."""
        if request.num_bytes <= QUICK:
            return _read(self._reader, request)
        async with self._one_large:
            if self._large_reader is None:
                self._large_reader = await asyncio.to_thread(copy.deepcopy, self._reader)
            return await asyncio.to_thread(_read, self._large_reader, request)

    def _drawn(self, request: Asked, room: int) -> Sampling:
        sampling = self._sampling
        wanted = sampling.max_tokens if request.max_tokens is None else request.max_tokens
        longest = min(wanted, room, self._longest)
        warps = {name: getattr(request, name) for name in WARPS}
        return replace(
            sampling,
            max_tokens=longest,
            min_tokens=min(
                sampling.min_tokens if request.min_tokens is None else request.min_tokens, longest
            ),
            stop=tuple(dict.fromkeys((*sampling.stop, *request.stop))),
            **{name: value for name, value in warps.items() if value is not None},
        )


def _read(reader: Reader, request: Asked) -> list[tuple[int, ...]]:
    """Return the tokens of each of a call's prompts."""
    prompts = (request.prompt, *request.more_prompts)
    return [reader.read(replace(request, prompt=prompt), History()).observed for prompt in prompts]


async def _all_or_none(calls: Sequence[Coroutine[Any, Any, Generation]]) -> list[Generation]:
    """Return every call's result; if one is refused, give up the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
