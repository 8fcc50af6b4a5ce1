"""A finished model's door, and the token in front of it."""

import asyncio
import json
import time
from typing import Any

import pytest

from contracts.errors import WorkerError
from contracts.network.access import digest
from contracts.network.http_guard import guarded
from contracts.rollout import FinishReason, Sampling
from rollout_workers.engines.base import Generation, Request, Undrawable
from rollout_workers.gateway.bodies import Asked, Refused
from rollout_workers.gateway.engine_calls import EngineCalls
from rollout_workers.gateway.reading import Reader
from rollout_workers.gateway.server import Gateway
from rollout_workers.gateway.serving import EngineThread, ModelDoor
from tests.chat_templates import TEMPLATES, chat_tokenizer


class Unfit(Exception):
    """A refusal of a class of the engine's own, as vLLM's are: no ValueError."""


class Fussy:
    """Draws one token for each request, and refuses temperatures above 1."""

    window, weight_version, mask_version, num_generated = 100, 0, None, 0

    def __init__(self) -> None:
        self.tokenizer = chat_tokenizer(TEMPLATES["default_system"])
        self.requests: list[Request] = []

    def add(self, request: Request) -> None:
        if request.sampling.temperature > 1:
            raise Unfit("too hot")
        self.requests.append(request)

    @property
    def num_unfinished(self) -> int:
        return len(self.requests)

    def step(self) -> list[Generation]:
        done, self.requests = self.requests, []
        return [Generation(request.id, (5,), "a", (-1.0,), (0,), FinishReason.STOP) for request in done]


def test_a_request_that_the_engine_refuses_is_refused_and_others_go_on() -> None:
    calls = EngineCalls()
    thread = EngineThread(Fussy, calls)  # type: ignore[arg-type]
    engine = thread.engine()
    door = ModelDoor(engine, Reader(engine.tokenizer, None), calls, Sampling(max_tokens=4))

    async def ask() -> Any:
        with pytest.raises(Refused, match="too hot"):
            await door.answer(Asked("any", prompt="a", temperature=1.5))
        return await door.answer(Asked("any", prompt="a", temperature=0.5, num_choices=2))

    _, replies = asyncio.run(ask())
    assert [reply.message["content"] for reply in replies] == ["a", "a"]
    thread.stop()
    assert thread.wait(60) and thread.failure is None


class Dying(Fussy):
    """Can't draw at a temperature of 0.3, and dies at 0.7."""

    def step(self) -> list[Generation]:
        temperatures = {request.sampling.temperature for request in self.requests}
        if 0.7 in temperatures:
            raise WorkerError("the model's logits are not finite")
        bad = {request.id for request in self.requests if request.sampling.temperature == 0.3}
        self.requests = [request for request in self.requests if request.id not in bad]
        finished = super().step()
        if bad:
            raise Undrawable(bad, finished)
        return finished


def test_a_dead_engine_answers_its_open_calls_and_later_ones_and_a_failed_request_ends_alone() -> None:
    calls = EngineCalls()
    thread = EngineThread(Dying, calls)  # type: ignore[arg-type]
    engine = thread.engine()
    door = ModelDoor(engine, Reader(engine.tokenizer, None), calls, Sampling(max_tokens=4))

    async def status(temperature: float) -> int:
        try:
            await door.answer(Asked("any", prompt="a", temperature=temperature))
        except Refused as refused:
            return refused.status
        return 200

    async def ask() -> None:
        assert await asyncio.gather(status(0.3), status(0.5), status(0.3)) == [400, 200, 400]
        assert await status(0.5) == 200
        assert await asyncio.gather(status(0.7), status(0.5)) == [503, 503]
        assert await status(0.5) == 503

    asyncio.run(asyncio.wait_for(ask(), 30))
    assert thread.wait(60) and isinstance(thread.failure, WorkerError)


class Endless(Fussy):
    """Draws for ever, and remembers what it was asked to give up."""

    def __init__(self) -> None:
        super().__init__()
        self.given_up: set[int] = set()

    def step(self) -> list[Generation]:
        time.sleep(0.01)
        return []

    def abort(self, ids: set[int]) -> None:
        self.given_up |= ids
        self.requests = [request for request in self.requests if request.id not in ids]


def test_an_engine_gives_up_the_requests_of_callers_that_have_gone() -> None:
    calls = EngineCalls()
    thread = EngineThread(Endless, calls)  # type: ignore[arg-type]
    engine: Any = thread.engine()
    door = ModelDoor(engine, Reader(engine.tokenizer, None), calls, Sampling(max_tokens=4))

    async def leave() -> None:
        asking = asyncio.ensure_future(door.answer(Asked("any", prompt="a", num_choices=3)))
        while engine.num_unfinished < 3:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait([asking])
        while engine.num_unfinished:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(leave(), 30))
    assert engine.given_up == {0, 1, 2}
    thread.stop()


def test_a_large_prompt_does_not_hold_the_event_loop() -> None:
    engine: Any = Fussy()
    slow = Reader(engine.tokenizer, None)
    door = ModelDoor(engine, slow, EngineCalls(), Sampling(max_tokens=4))
    large = Asked("any", prompt="3 5 " * 10**5, num_bytes=4 * 10**5)

    async def longest_pause() -> float:
        asking = asyncio.ensure_future(door.answer(large))
        pauses, before = [], time.monotonic()
        while not asking.done():
            await asyncio.sleep(0)
            pauses.append(time.monotonic() - before)
            before = time.monotonic()
        with pytest.raises(Refused, match="maximum context length is 99"):
            await asking
        return max(pauses) / sum(pauses)

    assert asyncio.run(longest_pause()) < 0.7


def test_each_prompt_of_a_list_has_its_choices_in_order() -> None:
    calls = EngineCalls()
    thread = EngineThread(Fussy, calls)  # type: ignore[arg-type]
    engine: Any = thread.engine()
    door = ModelDoor(
        engine, Reader(engine.tokenizer, None), calls, Sampling(max_tokens=4, min_tokens=1), seed=5
    )
    read: list[Request] = []
    add = engine.add
    engine.add = lambda request: (read.append(request), add(request))
    call = Asked("any", prompt=(7,), more_prompts=((8, 9),), num_choices=2, min_tokens=3)
    num_read, replies = asyncio.run(door.answer(call))
    assert (num_read, len(replies)) == (3, 4)
    drawn = [(request.tokens, request.seed) for request in read]
    assert drawn == [((7,), 5), ((7,), 6), ((8, 9), 5), ((8, 9), 6)]
    assert {request.sampling.min_tokens for request in read} == {3}
    thread.stop()


def test_a_served_model_refuses_calls_beyond_its_limit_until_others_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollout_workers.gateway.serving.MOST_OPEN", 2)
    engine: Any = Fussy()
    door = ModelDoor(engine, Reader(engine.tokenizer, None), EngineCalls(), Sampling(max_tokens=4))
    with door.entered():
        with (
            door.entered(),
            pytest.raises(Refused, match="2 calls are open, as many as a served model allows"),
        ):
            door.entered().__enter__()
        with door.entered():
            pass


def test_an_engine_that_does_not_start_says_why() -> None:
    def broken() -> Any:
        raise RuntimeError("no such kernel")

    with pytest.raises(RuntimeError, match="no such kernel"):
        EngineThread(broken, EngineCalls()).engine()


def test_callers_need_the_token_where_there_is_one() -> None:
    gateway = Gateway(public=object())  # type: ignore[arg-type]
    front = guarded(gateway, "0.0.0.0", digest("a-long-enough-token"), most_bytes=100, remedy="say less")

    def status(**headers: str) -> int:
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/models",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        asyncio.run(front(scope, receive, send))
        if sent[0]["status"] == 200:
            assert json.loads(sent[1]["body"])["data"][0]["id"] == "whetstone"
        return int(sent[0]["status"])

    assert status(host="any.example", authorization="Bearer a-long-enough-token") == 200
    assert status(host="any.example", authorization="Bearer another-token") == 401
    assert status(host="any.example") == 401
