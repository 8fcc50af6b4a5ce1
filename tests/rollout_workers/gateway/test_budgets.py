"""Calls that a door refuses and counts: no program gets more than its share, whatever it sends."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from rollout_workers.gateway.reading import Reader
from rollout_workers.gateway.token_budget import TokenBudget
from tests.chat_templates import TEMPLATES, make_chat_model
from tests.rollout_workers.gateway.served import Served, connect, head, serve
from tests.until import until

ASK = [{"role": "user", "content": "What is three and four?"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = make_chat_model(tmp_path_factory.mktemp("model"), TEMPLATES["default_system"])
    with serve(folder) as made:
        yield made


@pytest.mark.parametrize("arguments", ["5", "no JSON", "[[1]]", '{"a": [1, null]}', ""])
def test_any_arguments_of_a_call_are_read(served: Served, arguments: str) -> None:
    door, call = served.door(), {"type": "function", "function": {"name": "add", "arguments": arguments}}
    talk = [*ASK, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "7"}]
    assert post(served, door, {"messages": talk}).status_code == 200


def test_malformed_calls_of_tools_are_counted_as_refused(served: Served) -> None:
    door = served.door()
    for calls in (5, [5], [{"function": 5}]):
        talk = [*ASK, {"role": "assistant", "tool_calls": calls}, *ASK]
        assert post(served, door, {"messages": talk}).status_code == 400
    assert door.num_refused == 3 and not door.history.calls


def test_an_error_of_the_gateways_own_is_counted_too(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    door = served.door()
    monkeypatch.setattr(Reader, "read", None)
    assert post(served, door, {"messages": ASK}).status_code == 500
    assert door.num_refused == 1


def test_calls_at_once_stay_within_the_budget_of_tokens(served: Served) -> None:
    door = served.door(max_tokens=300, token_budget=320)
    client, outcomes = served.client(door), []

    def call(number: int) -> None:
        talk: list[Any] = [{"role": "user", "content": f"What is {number} and four?"}]
        try:
            outcomes.append(client.chat.completions.create(model="any", messages=talk).usage)
        except openai.PermissionDeniedError as error:
            outcomes.append(error)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    drawn = [len(call.generation.tokens) for call in door.history.calls]
    assert len(outcomes) == 4 and 0 < sum(drawn) <= 320
    refused = [outcome for outcome in outcomes if isinstance(outcome, openai.PermissionDeniedError)]
    assert len(refused) == 4 - len(drawn) and door.is_spent == bool(refused)
    assert sum(drawn) == 320 or not refused


def test_a_call_waits_for_tokens_that_an_open_one_may_not_need() -> None:
    async def play() -> None:
        budget = TokenBudget(100)
        assert await budget.hold(80) == 80
        second = asyncio.ensure_future(budget.hold(25, num_answers=2))  # 50, and 100 - 80 = 20 are free
        gone = asyncio.ensure_future(budget.hold(50))
        await asyncio.sleep(0)
        assert not second.done() and not gone.done()
        gone.cancel()
        budget.release(80, num_written=30)
        assert await second == 25  # of 100 - 30 = 70
        budget.release(50, num_written=49)
        assert await budget.hold(80, num_answers=2) == 10  # 70 - 49 = 21 are left
        budget.release(20, num_written=20)
        assert await budget.hold(80, num_answers=2) == 0  # one is left for two
        assert await budget.hold(80) == 1

    asyncio.run(asyncio.wait_for(play(), 30))


def test_no_more_bodies_are_read_at_once_than_calls_may_be_open(served: Served) -> None:
    """Callers that never send the rest of their bodies hold no memory but their own, and look like a hang."""
    door = served.door(max_open_calls=2, start_timeout_s=30.0)
    key = served.key(door)
    callers = [connect(served) for _ in range(2)]
    for caller in callers:
        caller.sendall(head("/v1/chat/completions", key, 2**20) + b"{" * 2**16)
    until(lambda: door.inside.num == 2)
    with connect(served) as third:
        third.sendall(head("/v1/chat/completions", key, 2**20) + b"{" * 2**16)
        answer = third.recv(4096)
        assert b"429" in answer.splitlines()[0] and b"connection: close" in answer.lower()
    assert door.num_refused == 1 and door.patience_s <= 30
    client = OpenAI(base_url=served.address, api_key=key, max_retries=0)
    with pytest.raises(openai.RateLimitError, match="max_open_calls"):  # a body of 900 kB reads its refusal
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "x" * 900_000}])
    for caller in callers:
        caller.close()
    until(lambda: door.inside.num == 0)
    assert post(served, door, {"messages": ASK}).status_code == 200


def post(served: Served, door: Any, body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {served.key(door)}"}
    return httpx.post(f"{served.address}/chat/completions", headers=headers, json=body, timeout=60)
