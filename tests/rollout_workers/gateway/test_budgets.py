"""Calls that a door refuses and counts: no program gets more than its share, whatever it sends."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rollout_workers.gateway.reading import Reader
from tests.chat_templates import TEMPLATES, make_chat_model
from tests.rollout_workers.gateway.served import Served, serve

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


def post(served: Served, door: Any, body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {served.key(door)}"}
    return httpx.post(f"{served.address}/chat/completions", headers=headers, json=body, timeout=60)
