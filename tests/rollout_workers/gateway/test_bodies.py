"""Options of a call are read or refused, never ignored silently."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_workers.gateway.bodies import Refused, read_chat, read_completion

TALK = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "add"}}]


def chat(**options: Any) -> Any:
    return read_chat(json.dumps({"model": "any", "messages": TALK, **options}).encode())


def test_a_call_of_the_stock_client_is_read() -> None:
    request = chat(
        max_completion_tokens=5, stop="\n", n=2, stream=True, stream_options={"include_usage": True}
    )
    assert (request.max_tokens, request.stop, request.num_choices) == (5, ("\n",), 2)
    assert request.streams and request.streams_usage and request.is_chat
    assert chat(parallel_tool_calls=False).tools == ()  # of no tool there are no two calls
    assert len(chat(tools=TOOLS, parallel_tool_calls=True).tools) == 1
    assert chat(temperature=1, seed=3).temperature == 1.0
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}]}]
    assert chat(messages=parts).messages == ({"role": "user", "content": "Hi!"},)
    completion = read_completion(json.dumps({"prompt": ["3 + 4"], "max_tokens": 1}).encode())
    assert (completion.prompt, completion.is_chat) == ("3 + 4", False)
    assert read_completion(b'{"prompt": [[1, 2]]}').prompt == (1, 2)
    several = read_completion(b'{"prompt": ["a", [3, 4], "b"], "min_tokens": 2, "repetition_penalty": 1.5}')
    assert (several.prompt, several.more_prompts) == ("a", ((3, 4), "b"))
    assert (several.min_tokens, several.repetition_penalty) == (2, 1.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logprobs": True}, "logprobs"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"max_tokens": 0}, "max_tokens: expected 1 or more, got 0"),
        ({"max_tokens": True}, "max_tokens"),
        ({"n": 65}, "n: expected 1 to 64"),
        ({"stop": [""]}, "stop"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": 2.1}, "temperature: expected 0 to 2, got 2.1"),
        ({"stream": "true"}, "stream: expected true or false, got 'true'"),
        ({"stream": 1}, "stream: expected true or false, got 1"),
        ({"stream_options": {"include_usage": True}}, "stream_options: expected an object, with stream=true"),
        ({"model": ["any"]}, "model: expected a name"),
        ({"user": 5}, "user: expected a text, got 5"),
        ({"top_p": 0}, "top_p"),
        ({"messages": []}, "messages: expected a list"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text alone"),
        ({"messages": [{"role": "king", "content": "Hi"}]}, "role"),
        ({"tools": {}}, "tools"),
        ({"stop": ["x"] * 65}, "stop: expected at most 64 texts, got 65"),
        ({"tools": [{"type": "web_search"}]}, "expected a list of functions with names"),
        ({"tools": [3]}, "expected a list of functions with names"),
        ({"tools": TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls=False is not supported"),
        ({"best_of": 5}, "best_of=5 is not supported here; expected 1"),
    ],
)
def test_what_can_not_be_done_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message) as refused:
        chat(**options)
    assert refused.value.status == 400


DEEP = "[" * 300 + "]" * 300


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (5, "message 1: tool_calls: expected a list of calls such as .*, got 5"),
        ({"a": 1}, "expected a list of calls"),
        ([5], "expected a list of calls"),
        ([{"function": "add"}], "expected a list of calls"),
        ([{"function": {"name": 3}}], "expected a list of calls"),
        ([{"function": {"name": "add", "arguments": 5}}], "expected a list of calls"),
        ([{"function": {"name": "add", "arguments": DEEP}}], "nested too deeply"),
        ([{"function": {"name": "add", "arguments": DEEP * 100}}], None),  # no JSON: a text
        ([{"function": {"name": "add", "arguments": "[" * 10**5}}], "nested too deeply"),
        ([{"function": {"name": "add", "arguments": {"a": json.loads(DEEP)}}}], "the body: .* too deep"),
        ([{"name": "add"}], None),
    ],
)
def test_calls_of_tools_are_checked(calls: Any, message: str | None) -> None:
    talk = [{"role": "assistant", "tool_calls": calls}]
    if message is None:
        assert len(chat(messages=talk).messages[0]["tool_calls"]) == 1
        return
    with pytest.raises(Refused, match=message) as refused:
        chat(messages=talk)
    assert refused.value.status == 400


@pytest.mark.parametrize("count", [300, 2000, 10**5])
def test_calls_that_are_a_messages_content_are_not_deep_either(count: int) -> None:
    lists = "[" * count + "]" * count
    for content in ("[" * count, lists, f'{{"name": "add", "arguments": {{"a": {lists}}}}}'):
        with pytest.raises(Refused) as refused:
            chat(messages=[{"role": "function_call", "content": content}])
        assert refused.value.status == 400


def test_a_clients_nulls_and_empty_lists_of_calls_are_read() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": {"to": None}}}
    talk = [
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    empty, called = chat(messages=talk).messages
    assert empty == {"role": "assistant", "content": ""}
    assert called["tool_calls"] == [call]


def test_tools_and_texts_are_not_deep_either() -> None:
    for options in (
        {"tools": [{**TOOLS[0], "a": json.loads(DEEP)}]},
        {"messages": [{**TALK[0], "content": "\ud800", "a": json.loads(DEEP)}]},
    ):
        with pytest.raises(Refused, match="too deeply"):
            chat(**options)


def test_half_a_surrogate_pair_is_refused_and_a_whole_one_is_a_letter() -> None:
    with pytest.raises(Refused, match="surrogate"):
        read_chat(rb'{"messages": [{"role": "user", "content": "a \uD83D"}]}')
    request = read_chat(rb'{"messages": [{"role": "user", "content": "a \ud83d\ude00"}]}')
    assert request.messages[0]["content"] == "a \N{GRINNING FACE}"


@pytest.mark.parametrize(
    "prompt", [None, "", [], ["a", 3], ["a", ""], [[1], []], [[1], [-1]], [1.5], [-1], [True], {"a": 1}, 3]
)
def test_a_completion_has_prompts_of_text_or_tokens(prompt: Any) -> None:
    with pytest.raises(Refused, match="expected a text, a list of tokens"):
        read_completion(json.dumps({"prompt": prompt}).encode())


def test_a_call_asks_for_a_limited_number_of_texts() -> None:
    with pytest.raises(Refused, match="at most 1024 texts"):
        read_completion(json.dumps({"prompt": ["a"] * 17, "n": 64}).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["messages", "prompt", "stop", "n", "max_tokens", "tools", "stream_options", "seed", "x"]
)


@given(st.binary(max_size=50) | st.dictionaries(NAMES, JSON).map(lambda body: json.dumps(body).encode()))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    for read in (read_chat, read_completion):
        try:
            read(body)
        except Refused as refused:
            assert refused.status == 400
